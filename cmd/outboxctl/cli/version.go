package cli

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// release is the JSON result of version.
type release struct {
	Version  string `json:"version"` // (devel) for a build without a version
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the versions of outboxctl and Go",
		RunE: func(*cobra.Command, []string) error {
			v := release{version(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return a.show(v, func() error { return a.say("outboxctl %s, %s, %s", v.Version, v.Go, v.Platform) })
		},
	}
}

// version returns the installed version of the module, or the version of the git clone in which it was built.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
