//go:build unix

package services

import (
	"os"
	"syscall"
)

// lockFile takes an exclusive lock that ends when f is closed or this process dies. It fails immediately if another
// holds it.
func lockFile(f *os.File) error {
	const how = syscall.LOCK_EX | syscall.LOCK_NB
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if err != syscall.EINTR {
			return err
		}
	}
}

func ownedByUs(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}
