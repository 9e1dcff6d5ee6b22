package integration_test

import "syscall"

// mountSmall mounts a file system in memory with room for an hour's messages.
func mountSmall(dir string) error { return syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=3g") }
