package uitest

import (
	"bytes"
	"cmp"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// TestScreenshots takes the screenshots for the documents: make screenshots. Their content is always the same, except
// for the shape of the charts.
func TestScreenshots(t *testing.T) {
	folder := os.Getenv("OUTBOX_SCREENSHOTS")
	if folder == "" {
		t.Skip("OUTBOX_SCREENSHOTS is not set: run make screenshots")
	}
	w := newWorld(t, alice)
	w.badDay(t)
	w.forward(t)
	w.traffic(t, 60)
	b := newTab(t)
	for name, of := range map[string]struct {
		path   string
		height int64
	}{"page": {"", 980}, "page-errors": {"errors", 780}, "page-messages": {"messages?state=dead", 780}} {
		b.run(chromedp.EmulateViewport(1100, of.height))
		b.open(w.url + of.path)
		var picture []byte
		b.run(chromedp.CaptureScreenshot(&picture))
		require.NoError(t, os.WriteFile(filepath.Join(folder, name+".png"), smaller(t, picture), 0o644))
	}

	require.NoError(t, os.MkdirAll(filepath.Join(folder, "screens"), 0o755))
	failing := w.count(t, "SELECT min(id) FROM outbox WHERE topic = 'emails.welcome' AND attempts > 0")
	var uuid string
	require.NoError(t, w.pool.QueryRow(t.Context(), "SELECT uuid FROM outbox WHERE id = $1", failing).Scan(&uuid))
	for name, path := range map[string]string{
		"overview": "", "message": fmt.Sprintf("message?id=%d", failing), "search": "find?q=" + uuid,
		"act": "act?verb=discard&state=dead&topic=orders.placed&from=messages",
	} {
		for look, size := range map[string][2]int64{"wide": {1440, 900}, "phone": {390, 844}} {
			for scheme, dark := range map[string]bool{"light": false, "dark": true} {
				b.dark(dark)
				b.run(chromedp.EmulateViewport(size[0], size[1]))
				b.open(w.url + path)
				var picture []byte
				b.run(chromedp.CaptureScreenshot(&picture))
				file := filepath.Join(folder, "screens", name+"-"+look+"-"+scheme+".png")
				require.NoError(t, os.WriteFile(file, smaller(t, picture), 0o644))
			}
		}
	}
}

// smaller encodes a picture with its 256 most frequent colours: a page has few colours, and shades of them around its
// letters.
func smaller(t *testing.T, picture []byte) []byte {
	t.Helper()
	full, err := png.Decode(bytes.NewReader(picture))
	require.NoError(t, err)
	bounds, count := full.Bounds(), map[color.RGBA]int{}
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(full.At(x, y)).(color.RGBA) }
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			count[at(x, y)]++
		}
	}
	most := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int { return cmp.Compare(count[b], count[a]) })
	var palette color.Palette
	for _, c := range most[:min(len(most), 256)] {
		palette = append(palette, c)
	}
	nearest, out := map[color.RGBA]uint8{}, image.NewPaletted(bounds, palette)
	for _, c := range most {
		nearest[c] = uint8(palette.Index(c))
	}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			out.SetColorIndex(x, y, nearest[at(x, y)])
		}
	}
	var b bytes.Buffer
	require.NoError(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, out))
	return b.Bytes()
}
