package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// archives packs each program with the licences of what is in it, and writes the sums of all that is published.
func (r *rehearsal) archives(ctx context.Context) (string, error) {
	when, err := output(ctx, r.clone, nil, "git", "log", "-1", "--format=%cI", "HEAD")
	if err != nil {
		return "", err
	}
	at, err := time.Parse(time.RFC3339, strings.TrimSpace(when))
	if err != nil {
		return "", err
	}
	for _, m := range r.commandModules() {
		for _, t := range targets {
			folder := filepath.Dir(r.built(m, t))
			if err := archive(folder+".tar.gz", at, [][2]string{
				{m.command(), r.built(m, t)},
				{"LICENSE", filepath.Join(r.clone, "LICENSE")},
				{"LICENSES.txt", filepath.Join(r.out, m.command()+"_"+r.version+"_LICENSES.txt")},
			}); err != nil {
				return "", err
			}
		}
	}
	published, err := filepath.Glob(filepath.Join(r.out, "*.*"))
	if err != nil {
		return "", err
	}
	slices.Sort(published)
	var sums strings.Builder
	files := 0
	for _, file := range published {
		if info, err := os.Stat(file); err != nil || info.IsDir() {
			continue
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), filepath.Base(file))
		files++
	}
	return fmt.Sprintf("%d files", files), os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(sums.String()), 0o644)
}

// archive writes the same bytes whenever it is given the same files.
func archive(to string, when time.Time, files [][2]string) error {
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	packed := gzip.NewWriter(out)
	tape := tar.NewWriter(packed)
	for _, file := range files {
		content, err := os.ReadFile(file[1])
		if err != nil {
			return err
		}
		info, err := os.Stat(file[1])
		if err != nil {
			return err
		}
		if err := tape.WriteHeader(&tar.Header{
			Name: file[0], Mode: int64(info.Mode().Perm()), Size: int64(len(content)), ModTime: when, Format: tar.FormatPAX,
		}); err != nil {
			return err
		}
		if _, err := tape.Write(content); err != nil {
			return err
		}
	}
	if err := tape.Close(); err != nil {
		return err
	}
	if err := packed.Close(); err != nil {
		return err
	}
	return out.Close()
}
