package ui

import (
	"fmt"
	"math"
	"strings"
	"time"
)

const (
	chartWidth  = 300
	chartHeight = 60
	chartTop    = 6                // room for the line's width
	minGap      = 15 * time.Second // shorter gaps come from a busy machine
)

// chart is a line over time, from zero up, as the paths of an SVG.
type chart struct {
	Line, Area string
	Most, Last string // the largest and the latest value
	Since      string // age of the first sample
	Few        bool   // too few samples for a line
	Slices     []slice
}

// draw makes a chart of a value of each sample. The line has a gap where samples are missing.
func draw(samples []sample, every time.Duration, value func(sample) float64, write func(float64) string) chart {
	if len(samples) < 2 {
		return chart{Few: true}
	}
	first, last := samples[0].at, samples[len(samples)-1].at
	most := 0.0
	for _, s := range samples {
		most = max(most, value(s))
	}
	scale := chartHeight - chartTop
	x := func(s sample) float64 {
		return chartWidth * float64(s.at.Sub(first)) / float64(max(last.Sub(first), 1))
	}
	y := func(s sample) float64 { return chartHeight - float64(scale)*value(s)/math.Max(most, 1e-9) }
	var line, area strings.Builder
	end := func(s sample) { fmt.Fprintf(&area, "L%.1f %dZ", x(s), chartHeight) }
	for i, s := range samples {
		if i == 0 || s.at.Sub(samples[i-1].at) > max(3*every, minGap) {
			if i > 0 {
				end(samples[i-1])
			}
			fmt.Fprintf(&line, "M%.1f %.1f", x(s), y(s))
			fmt.Fprintf(&area, "M%.1f %dL%.1f %.1f", x(s), chartHeight, x(s), y(s))
			continue
		}
		fmt.Fprintf(&line, "L%.1f %.1f", x(s), y(s))
		fmt.Fprintf(&area, "L%.1f %.1f", x(s), y(s))
	}
	end(samples[len(samples)-1])
	return chart{
		Line: line.String(), Area: area.String(), Most: write(most), Last: write(value(samples[len(samples)-1])),
		Since: about(last.Sub(first)),
		Slices: slicesOf(samples, x, func(s sample) string {
			return s.at.UTC().Format("15:04:05 UTC: ") + write(value(s))
		}),
	}
}

// mostSlices limits the part of the page that slices take up.
const mostSlices = 60

// slicesOf divides a chart into slices where it has samples; each shows the figure of its last sample.
func slicesOf(samples []sample, x func(sample) float64, text func(sample) string) (list []slice) {
	step, from := max(chartWidth/float64(len(samples)), chartWidth/float64(mostSlices)), 0.0
	for i, s := range samples {
		if to := x(s); to-from >= step-.01 || i == len(samples)-1 && to > from {
			list = append(list, slice{X: fmt.Sprintf("%.1f", from), Width: fmt.Sprintf("%.1f", to-from), Text: text(s)})
			from = to
		}
	}
	return list
}
