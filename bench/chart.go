package main

import (
	"fmt"
	"html"
	"strings"
)

const (
	chartWidth  = 760
	chartLabels = 190 // width of the labels
	chartValues = 110 // width of the numbers
	barHeight   = 20
	barStep     = 26
	titleHeight = 34
)

// section is a group of bars.
type section struct {
	title string
	bars  []bar
}

type bar struct {
	label string
	value float64
	ours  bool
}

// sections collects the bars of the chart; ours comes first and once.
func sections(outcomes []outcome) []section {
	var list []section
	for _, o := range outcomes {
		if o.chart == "" || o.missing != "" || o.err != nil {
			continue
		}
		at := -1
		for i := range list {
			if list[i].title == o.chart {
				at = i
			}
		}
		if at < 0 {
			at = len(list)
			list = append(list, section{o.chart, []bar{{"watermill-outbox", o.oursMed, true}}})
		}
		list[at].bars = append(list[at].bars, bar{o.label, o.rivMed, false})
	}
	return list
}

// chart draws the bars, the longest of each section over the full width.
func chart(outcomes []outcome, machine string) string {
	var body strings.Builder
	y := 46
	text := func(x, y int, style, s string) {
		fmt.Fprintf(&body, `<text x="%d" y="%d" %s>%s</text>`+"\n", x, y, style, html.EscapeString(s))
	}
	text(16, 26, `font-size="16" font-weight="bold"`, "Messages per second, more is better")
	for _, s := range sections(outcomes) {
		longest := 0.0
		for _, b := range s.bars {
			longest = max(longest, b.value)
		}
		y += titleHeight
		text(16, y-10, `font-weight="bold"`, s.title)
		for _, b := range s.bars {
			width := b.value / longest * (chartWidth - chartLabels - chartValues)
			colour := "#9aa5b1"
			if b.ours {
				colour = "#1f6feb"
			}
			text(chartLabels-8, y+15, `text-anchor="end"`, b.label)
			fmt.Fprintf(&body, `<rect x="%d" y="%d" width="%.1f" height="%d" rx="2" fill="%s"/>`+"\n", chartLabels, y,
				max(width, 1), barHeight, colour)
			text(chartLabels+int(width)+6, y+15, "", number(b.value))
			y += barStep
		}
	}
	y += 24
	text(16, y, `font-size="11" fill="#57606a"`, machine)
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" `+
		`font-family="system-ui, sans-serif" font-size="13" fill="#1f2328">
<rect width="100%%" height="100%%" fill="#ffffff"/>
%s</svg>
`, chartWidth, y+16, body.String())
}
