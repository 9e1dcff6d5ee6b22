//go:build !linux

package services

func helper() int { return 1 }
