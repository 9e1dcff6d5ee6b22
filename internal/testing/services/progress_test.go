package services

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestWatchSaysWhatIsWaitedFor(t *testing.T) {
	log := filepath.Join(t.TempDir(), "x.log")
	must(t, os.WriteFile(log, []byte("first\nDownloaded a.jar\n"), 0o644))
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		stop := Options{Log: &said}.watch("waiting for x", log)
		time.Sleep(2*progressPause + time.Second)
		stop()
		stop()
		want := "services: still waiting for x (5s): Downloaded a.jar\nservices: still waiting for x (10s): " +
			"Downloaded a.jar\n"
		if said.String() != want {
			t.Errorf("got %q, want %q", said.String(), want)
		}
	})
}

func TestVigilLetsSlowStartsBe(t *testing.T) {
	now := time.Now()
	var v vigil
	for size := range int64(20) { // 20 times the limit, but with progress
		if v.hangs(now, size) {
			t.Fatal("a growing log counts as stalled")
		}
		if now = now.Add(stallTimeout - 1); v.hangs(now, size) {
			t.Fatal("gave up too early")
		}
	}
	if !v.hangs(now.Add(1), 19) {
		t.Error("a stalled log counts as growing")
	}
}

// The error of a failed start has the reason and the path of the log, although the server's folder is removed.
func TestFailedStartKeepsItsLog(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the program is a shell script")
	}
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Setenv("JAVA_HOME", dir)
	t.Setenv("XDG_CACHE_HOME", dir)
	t.Setenv("HOME", dir)
	must(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "bin", "java"), []byte(`#!/bin/sh
case "$*" in
-version) echo 'openjdk version "21.0.1"' ;;
*StorageTool*) ;;
*) echo 'FATAL no quorum'; exit 1 ;;
esac
`), 0o755))
	root, err := userCache()
	must(t, err)
	must(t, os.MkdirAll(filepath.Join(root, "kafka-"+kafkaVersion), 0o755))

	_, err = StartKafka(context.Background(), Options{Log: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "FATAL no quorum") {
		t.Fatalf("got %v, want the program's output", err)
	}
	found := regexp.MustCompile(`its log: ([^)]+)`).FindStringSubmatch(err.Error())
	if found == nil {
		t.Fatalf("%v names no log", err)
	}
	content, err := os.ReadFile(found[1])
	must(t, err)
	if !strings.Contains(string(content), "FATAL no quorum") {
		t.Errorf("%s contains %q", found[1], content)
	}
}
