"""The KServe v2 protocol over gRPC. Needs the extra `interlingua[grpc]`; nothing here is imported without its port."""
