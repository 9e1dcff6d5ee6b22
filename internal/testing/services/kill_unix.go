//go:build unix

package services

import "syscall"

// killTree kills pid and its children. It pauses pid first, so that it starts no new ones in the meantime.
func killTree(pid int) {
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	children := childrenOf(pid)
	_ = syscall.Kill(pid, syscall.SIGKILL)
	for _, child := range children {
		_ = syscall.Kill(child, syscall.SIGKILL)
	}
}

func setFrozen(pid int, yes bool) error {
	if yes {
		return syscall.Kill(pid, syscall.SIGSTOP)
	}
	return syscall.Kill(pid, syscall.SIGCONT)
}
