package ui

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"path"
)

// asset is a file that pages refer to by the hash of its content, so that browsers can cache it forever.
type asset struct {
	name, hash, kind string
	content          []byte
}

var assets = loadAssets("style.css", "script.js", "icon.svg")

func loadAssets(names ...string) map[string]*asset {
	all := map[string]*asset{}
	for _, name := range names {
		content, err := files.ReadFile("page/" + name)
		if err != nil {
			panic(err) // the file is embedded
		}
		sum := sha256.Sum256(content)
		all[name] = &asset{name, hex.EncodeToString(sum[:8]), mimeTypes[path.Ext(name)], content}
	}
	return all
}

var mimeTypes = map[string]string{
	".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// assetURL returns the URL of an asset.
func assetURL(name string) string { return name + "?" + assets[name].hash }

func (a *asset) answer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", a.kind)
	if r.URL.RawQuery == a.hash {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	_, _ = w.Write(a.content)
}
