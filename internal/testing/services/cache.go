package services

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// cached returns the folder name in root, and fills it first if it is missing. It appears complete or not at all. If
// several processes need it, one fills it while the others wait.
func cached(ctx context.Context, root, name string, fill func(dir string) error) (string, error) {
	dir := filepath.Join(root, name)
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", err
	}
	lock, err := os.Create(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer lock.Close()
	for lockFile(lock) != nil {
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	incomplete, err := os.MkdirTemp(root, name+".*.incomplete")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(incomplete)
	full := filepath.Join(incomplete, name)
	if err := os.Mkdir(full, 0o755); err != nil {
		return "", err
	}
	if err := fill(full); err != nil {
		return "", err
	}
	if err := os.Rename(full, dir); err != nil {
		// On systems without locks another process may have been faster.
		if _, missing := os.Stat(dir); missing != nil {
			return "", err
		}
	}
	return dir, nil
}

func userCache() (string, error) {
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "watermill-outbox"), err
}
