package drive

import (
	"context"
	"strings"
	"testing"
)

func TestExplainPool(t *testing.T) {
	for most, want := range map[int]string{
		1: "context deadline exceeded: the only connection of the pool is in use; ",
		2: "context deadline exceeded: all 2 connections of the pool are in use; ",
	} {
		if err := explainPool(context.DeadlineExceeded, most, most); !strings.HasPrefix(err.Error(), want) {
			t.Error(err)
		}
	}
}
