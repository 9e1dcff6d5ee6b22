package cli

import (
	"testing"

	"github.com/millrace-go/watermill-outbox/admin"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	info, warning, critical := admin.Finding{
		Check: "i", Severity: admin.Info, Evidence: "so",
	}, admin.Finding{Check: "w", Severity: admin.Warning, Evidence: "slow"},
		admin.Finding{Check: "c", Severity: admin.Critical, Evidence: "lost"}
	for _, c := range []struct {
		findings []admin.Finding
		want     status
	}{
		{nil, status{Status: "ok", Message: "healthy"}},
		{[]admin.Finding{info}, status{Status: "ok", Message: "healthy"}},
		{[]admin.Finding{warning, info}, status{Status: "warning", Code: 1, Message: "w: slow"}},
		{
			[]admin.Finding{critical, critical, warning, info},
			status{Status: "critical", Code: 2, Message: "c: lost; and 2 more: c, w"},
		},
		{
			[]admin.Finding{critical, warning, warning, warning},
			status{Status: "critical", Code: 2, Message: "c: lost; and 3 more: w (3)"},
		},
	} {
		if got := judge(c.findings); got.Status != c.want.Status || got.Code != c.want.Code || got.Message != c.want.Message {
			t.Errorf("judge(%v) = %+v, want %+v", c.findings, got, c.want)
		}
	}
}
