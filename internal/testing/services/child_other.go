//go:build !unix

package services

import (
	"os"
	"syscall"
)

func childAttributes(*account, os.Signal) *syscall.SysProcAttr { return nil }

func free(string) uint64 { return 0 }
