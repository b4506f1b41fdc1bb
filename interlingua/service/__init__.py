"""The spine: admit, prepare, run, detokenise, count, cancel. One request goes through `Service.generate`."""
