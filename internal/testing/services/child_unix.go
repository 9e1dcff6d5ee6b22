//go:build unix && !linux

package services

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// childAttributes makes the child run as account and stay out of our process group, so that Ctrl-C reaches only this
// process and servers end after their users. There is no parent-death signal here.
func childAttributes(as *account, _ os.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if as != nil {
		attr.Credential = &syscall.Credential{Uid: as.uid, Gid: as.gid}
	}
	return attr
}

// childrenOf returns the processes whose parent is pid.
func childrenOf(pid int) []int {
	var children []int
	out, _ := exec.Command("pgrep", "-P", strconv.Itoa(pid)).Output()
	for _, line := range strings.Fields(string(out)) {
		if child, err := strconv.Atoi(line); err == nil {
			children = append(children, child)
		}
	}
	return children
}

func free(string) uint64 { return 0 }
