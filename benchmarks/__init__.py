"""What `mnemolab bench` measures."""
