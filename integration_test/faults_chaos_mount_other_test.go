//go:build unix && !linux

package integration_test

import "errors"

func mountSmall(string) error { return errors.ErrUnsupported }
