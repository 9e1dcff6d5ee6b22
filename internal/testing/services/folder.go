package services

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const folderPattern = "watermill-outbox-*"

// folder is a temporary folder of one server. This process locks a file in it while it is alive, so that another run
// can distinguish a folder in use from an abandoned one.
type folder struct {
	root string
	path string // inside root, owned by the account the server runs as
	lock *os.File
}

func newFolder(as *account) (*folder, error) { return newFolderIn(os.TempDir(), as) }

func newFolderIn(dir string, as *account) (_ *folder, err error) {
	sweepOnce()
	root, err := os.MkdirTemp(dir, folderPattern)
	if err != nil {
		return nil, err
	}
	f := &folder{root: root, path: filepath.Join(root, "run")}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if f.lock, err = os.Create(filepath.Join(root, "lock")); err != nil {
		return nil, err
	}
	if err := lockFile(f.lock); err != nil {
		return nil, fmt.Errorf("lock %s: %w", f.lock.Name(), err)
	}
	// The server's account must be able to traverse root, nothing more.
	if err := os.Chmod(root, 0o711); err != nil {
		return nil, err
	}
	if err := os.Mkdir(f.path, 0o700); err != nil {
		return nil, err
	}
	return f, as.own(f.path)
}

const (
	memory       = "/dev/shm" // where files are in memory on Linux
	enoughMemory = 4 << 30
)

// tempDir returns the directory for a server's folder.
func tempDir(opts Options) string {
	if opts.InMemory && free(memory) >= enoughMemory {
		return memory
	}
	return os.TempDir()
}

// Close deletes the folder, retrying for a while because the last processes of a killed server may still write to it.
func (f *folder) Close() error {
	unregister(f)
	deadline := time.Now().Add(10 * time.Second)
	err := os.RemoveAll(f.root)
	for err != nil && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
		err = os.RemoveAll(f.root)
	}
	if f.lock != nil {
		_ = f.lock.Close()
	}
	return err
}

var sweepOnce = sync.OnceFunc(sweep)

// sweep removes folders abandoned by killed runs. It leaves recent ones, whose owners may not have taken their locks
// yet.
func sweep() {
	roots, _ := filepath.Glob(filepath.Join(os.TempDir(), folderPattern))
	inMemory, _ := filepath.Glob(filepath.Join(memory, folderPattern))
	for _, root := range append(roots, inMemory...) {
		info, err := os.Lstat(root)
		if err != nil || !info.IsDir() || !ownedByUs(info) || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		lock, err := os.OpenFile(filepath.Join(root, "lock"), os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if lockFile(lock) == nil {
			_ = os.RemoveAll(root)
		}
		_ = lock.Close()
	}
}
