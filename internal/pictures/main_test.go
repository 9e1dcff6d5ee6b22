package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPicturesAreAsDrawn(t *testing.T) {
	for name, svg := range pictures() {
		kept, err := os.ReadFile(filepath.Join("../../docs", name))
		if err != nil || string(kept) != svg {
			t.Errorf("docs/%s is not what this program draws (%v): go run ./internal/pictures docs", name, err)
		}
		decoder := xml.NewDecoder(strings.NewReader(svg))
		for err = nil; err == nil; {
			_, err = decoder.Token()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
