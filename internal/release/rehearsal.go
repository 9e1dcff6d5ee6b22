package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// rehearsal is a clone of the checkout with the tags of a version, and a proxy that serves what they hold.
type rehearsal struct {
	root, version string
	work          string // removed at the end
	clone         string // of the checkout as it is, with what is not committed yet
	modules       []module
	out           string // what is made for the release
	env           []string
	untagged      error // why the clone has no tags
}

func newRehearsal(ctx context.Context, root, version string) (_ *rehearsal, err error) {
	r := &rehearsal{root: root, version: version, out: filepath.Join(root, ".cache", "release", version)}
	if r.work, err = os.MkdirTemp("", "release-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	r.clone = filepath.Join(r.work, "clone")
	if err := snapshot(ctx, root, r.clone); err != nil {
		return nil, err
	}
	if r.modules, err = modulesAt(ctx, r.clone, "HEAD"); err != nil {
		return nil, err
	}
	if r.env, err = proxyEnv(ctx, r.work); err != nil {
		return nil, err
	}
	if r.untagged = tag(ctx, r.clone, version, time.Now()); r.untagged != nil {
		return r, nil
	}
	for _, m := range r.modules {
		if err := serve(ctx, r.proxy(), r.clone, m, version); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *rehearsal) close() { _ = os.RemoveAll(r.work) }

func (r *rehearsal) proxy() string { return filepath.Join(r.work, "proxy") }

// folder makes an empty folder of the scratch space.
func (r *rehearsal) folder(names ...string) (string, error) {
	dir := filepath.Join(append([]string{r.work}, names...)...)
	return dir, os.MkdirAll(dir, 0o755)
}

// outside runs a command as a user of the version would, with the rehearsal's proxy.
func (r *rehearsal) outside(
	ctx context.Context, dir string, env []string, name string, args ...string,
) (string, error) {
	if r.untagged != nil {
		return "", fmt.Errorf("%w: the tags could not be made: %w", errNotChecked, r.untagged)
	}
	return output(ctx, dir, append(append([]string{}, r.env...), env...), name, args...)
}

// snapshot clones a checkout with its tags, and commits in the clone what the checkout has not committed.
func snapshot(ctx context.Context, root, to string) error {
	if _, err := output(ctx, root, nil, "git", "clone", "--quiet", root, to); err != nil {
		return err
	}
	for setting, value := range map[string]string{"user.name": "release", "user.email": "release@localhost"} {
		if _, err := output(ctx, to, nil, "git", "config", setting, value); err != nil {
			return err
		}
	}
	if _, err := output(ctx, to, nil, "git", "rm", "-rq", "."); err != nil {
		return err
	}
	listed, err := output(ctx, root, nil, "git", "ls-files", "-co", "--exclude-standard", "-z")
	if err != nil {
		return err
	}
	for file := range strings.SplitSeq(strings.TrimRight(listed, "\x00"), "\x00") {
		if err := copyFile(filepath.Join(root, file), filepath.Join(to, file)); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	if _, err := output(ctx, to, nil, "git", "add", "-A"); err != nil {
		return err
	}
	_, err = output(ctx, to, nil, "git", "commit", "--quiet", "--allow-empty", "-m", "what is not committed")
	return err
}

func copyFile(from, to string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, content, info.Mode().Perm())
}
