package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// generatedPages are written by a command from comments and help texts, whose sentences are those of the code.
var generatedPages = []string{
	"docs/reference/configuration.md", "docs/reference/errors.md", "docs/reference/ibx.md",
	"docs/reference/metrics.md", "docs/reference/outboxctl.md", "docs/reference/reliability.md", "docs/run/night.md",
}

// TestPagesSayForWhomTheyAre: a page begins with its readers, and with what they can do or know after it.
func TestPagesSayForWhomTheyAre(t *testing.T) {
	t.Parallel()
	for _, page := range glob(t, "docs/*/*.md") {
		paragraphs := paragraphsOf(read(t, page))
		if len(paragraphs) == 0 {
			t.Errorf("%s has no paragraph", page)
			continue
		}
		first := strings.Join(paragraphs[0], " ")
		if !strings.HasPrefix(first, "For ") || !strings.Contains(first, "Afterwards ") {
			t.Errorf("%s: begin with `For <readers>. Afterwards <what they can do>.`, and not with %q", page, first)
		}
	}
}

// TestProseIsShort: a sentence has at most 25 words, counted to the next full stop, colon or semicolon, and a paragraph
// at most five lines. Code in a sentence is one word. Tables, blocks of code and generated pages are left out, and
// decisions, which are for those who change the code.
func TestProseIsShort(t *testing.T) {
	t.Parallel()
	pages := slices.Concat(glob(t, "docs/*/*.md"),
		[]string{"README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md"})
	sentences := 0
	for _, page := range pages {
		if slices.Contains(generatedPages, page) || strings.HasPrefix(page, "docs/reference/decisions") {
			continue
		}
		for _, lines := range paragraphsOf(read(t, page)) {
			if len(lines) > 5 {
				t.Errorf("%s: a paragraph of %d lines begins with %q: at most five", page, len(lines), lines[0])
			}
			for _, sentence := range sentencesOf(lines) {
				sentences++
				if n := wordsIn(sentence); n > 25 {
					t.Errorf("%s: a sentence of %d words: at most 25: %s", page, n, sentence)
				}
			}
		}
	}
	if sentences < 1000 {
		t.Errorf("only %d sentences were found", sentences)
	}
}

func TestSentencesAreTold(t *testing.T) {
	t.Parallel()
	text := "# Title\n\nSee `a b. c` and [its page](x y.md). Then: **go on**.\n\n| a | b. c |\n|---|---|\n\n" +
		"- An item, 1.5 long\n  in two lines.\n- Another\n\n```\nno. text\n```\n"
	var got []string
	for _, lines := range paragraphsOf(text) {
		got = append(got, sentencesOf(lines)...)
	}
	want := []string{"See code and its page.", "Then:", "go on.", "An item, 1.5 long in two lines.", "Another"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

var (
	aComment  = regexp.MustCompile(`(?s)<!--.*?-->`)
	anItem    = regexp.MustCompile(`^\s*([-*]|\d+\.) `)
	aCodeSpan = regexp.MustCompile("`[^`]*`")
	aLinkText = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	anEnd     = regexp.MustCompile(`[.?!:;]["')]*\s+`)
)

// paragraphsOf are the lines of each paragraph and of each item of a list, without headings, tables, pictures and code.
func paragraphsOf(page string) (all [][]string) {
	page = aComment.ReplaceAllString(anExample.ReplaceAllString(page, "\n"), "\n")
	var paragraph []string
	end := func() {
		if len(paragraph) > 0 {
			all = append(all, paragraph)
		}
		paragraph = nil
	}
	for line := range strings.Lines(page) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.TrimSpace(line) == "", strings.ContainsAny(line[:1], "|#!"):
			end()
		case anItem.MatchString(line):
			end()
			paragraph = append(paragraph, line)
		default:
			paragraph = append(paragraph, line)
		}
	}
	end()
	return all
}

func sentencesOf(lines []string) (all []string) {
	text := anItem.ReplaceAllString(strings.Join(lines, " "), "")
	text = aCodeSpan.ReplaceAllString(text, "code")
	text = strings.ReplaceAll(aLinkText.ReplaceAllString(text, "$1"), "**", "")
	text = strings.Join(strings.Fields(text), " ")
	for {
		at := anEnd.FindStringIndex(text)
		if at == nil {
			return append(all, text)
		}
		all, text = append(all, strings.TrimSpace(text[:at[1]])), text[at[1]:]
	}
}

func wordsIn(sentence string) (n int) {
	for word := range strings.FieldsSeq(sentence) {
		if strings.ContainsFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			n++
		}
	}
	return n
}
