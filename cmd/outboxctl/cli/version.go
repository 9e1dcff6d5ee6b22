package cli

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// release is what version says to scripts.
type release struct {
	Version  string `json:"version"` // (devel) of a build that has none
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "The version of this outboxctl, for a report",
		Long: "The version of this outboxctl, of the Go that built it, and the platform it is for.",
		RunE: func(*cobra.Command, []string) error {
			v := release{version(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return a.show(v, func() error { return a.say("outboxctl %s, %s, %s", v.Version, v.Go, v.Platform) })
		},
	}
}

// version is what the module was installed at, and what git knows of a clone that was built.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
