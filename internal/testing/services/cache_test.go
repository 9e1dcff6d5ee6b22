package services

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestCached(t *testing.T) {
	t.Parallel()
	ctx, root := within(t, 5*time.Minute), t.TempDir()
	broken := errors.New("broken")
	_, err := cached(ctx, root, "x", func(dir string) error {
		must(t, os.WriteFile(filepath.Join(dir, "half"), nil, 0o600))
		return broken
	})
	if !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(root, "x*", "*")); len(left) > 0 {
		t.Errorf("a failed fill left %v", left)
	}

	var fills atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			dir, err := cached(ctx, root, "x", func(dir string) error {
				fills.Add(1)
				return os.WriteFile(filepath.Join(dir, "whole"), nil, 0o600)
			})
			if err == nil {
				_, err = os.Stat(filepath.Join(dir, "whole"))
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := fills.Load(); n != 1 {
		t.Errorf("filled %d times", n)
	}
}
