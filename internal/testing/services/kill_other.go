//go:build !unix

package services

import (
	"errors"
	"os"
)

func killTree(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Kill()
	}
}

func setFrozen(int, bool) error { return errors.ErrUnsupported }
