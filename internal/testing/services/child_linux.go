package services

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// childAttributes makes the child run as account, get the signal when this process dies, and stay out of our process
// group, so that Ctrl-C reaches only this process and servers end after their users.
func childAttributes(as *account, onDeath os.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: onDeath.(syscall.Signal)}
	if as != nil {
		attr.Credential = &syscall.Credential{Uid: as.uid, Gid: as.gid}
	}
	return attr
}

// childrenOf returns the processes whose parent is pid.
func childrenOf(pid int) []int {
	var children []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		// The program's name, in parentheses, may contain anything; state and parent follow it.
		var state string
		var parent int
		_, err = fmt.Sscan(string(stat[bytes.LastIndexByte(stat, ')')+1:]), &state, &parent)
		if err == nil && parent == pid {
			child, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			children = append(children, child)
		}
	}
	return children
}

// free returns how many bytes a file system has left.
func free(path string) uint64 {
	var of syscall.Statfs_t
	if err := syscall.Statfs(path, &of); err != nil {
		return 0
	}
	return of.Bavail * uint64(of.Bsize)
}
