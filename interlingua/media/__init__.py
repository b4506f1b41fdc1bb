"""What prompts name beside text: images, videos and audio clips. So far where they may come from."""
