package services

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

const (
	oldestPostgres     = 13
	downloadedPostgres = "17.5.0"
)

// installedPostgres lists folders in which packages install initdb and postgres.
var installedPostgres = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/local/pgsql/bin",
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	`C:\Program Files\PostgreSQL\*\bin`,
}

// postgresBinaries returns the folder with initdb and postgres, and a description of the version.
func postgresBinaries(ctx context.Context) (bin, version string, err error) {
	if bin = os.Getenv("OUTBOX_POSTGRES_BIN"); bin != "" {
		if _, version, err = postgresVersion(bin); err != nil {
			return "", "", fmt.Errorf("OUTBOX_POSTGRES_BIN: %w", err)
		}
		return bin, version, nil
	}
	wanted := os.Getenv("OUTBOX_POSTGRES_VERSION")
	if wanted == "" {
		if bin, version = newestInstalledPostgres(); bin != "" {
			return bin, version, nil
		}
		wanted = downloadedPostgres
	}
	if bin, err = downloadPostgres(ctx, wanted); err != nil {
		return "", "", fmt.Errorf("download postgres %s (install PostgreSQL, or set OUTBOX_POSTGRES_BIN or "+
			"OUTBOX_POSTGRES_URL, to do without): %w", wanted, err)
	}
	_, version, err = postgresVersion(bin)
	return bin, version, err
}

func newestInstalledPostgres() (bin, version string) {
	var bins []string
	for _, pattern := range installedPostgres {
		found, _ := filepath.Glob(pattern)
		bins = append(bins, found...)
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		bins = append(bins, filepath.Dir(path))
	}
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		bins = append(bins, strings.TrimSpace(string(out)))
	}
	slices.Sort(bins)
	newest := oldestPostgres - 1
	for _, b := range slices.Compact(bins) {
		if major, v, err := postgresVersion(b); err == nil && major > newest {
			newest, bin, version = major, b, v
		}
	}
	return bin, version
}

var versionNumber = regexp.MustCompile(`\d+`)

func postgresVersion(bin string) (major int, version string, err error) {
	for _, program := range []string{"initdb", "postgres"} {
		if _, err := exec.LookPath(filepath.Join(bin, program)); err != nil {
			return 0, "", err
		}
	}
	out, err := exec.Command(filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		return 0, "", fmt.Errorf("postgres --version: %w", err)
	}
	version = strings.TrimSpace(string(out))
	if major, err = strconv.Atoi(versionNumber.FindString(version)); err != nil {
		return 0, "", fmt.Errorf("postgres --version: %w", err)
	}
	return major, version, nil
}

// downloadPostgres returns the bin folder of that version in the cache, filling it first if needed.
func downloadPostgres(ctx context.Context, version string) (string, error) {
	root, err := userCache()
	if os.Geteuid() == 0 && runtime.GOOS == "linux" {
		// The server's account cannot access root's home.
		root, err = "/var/cache/watermill-outbox", nil
	}
	if err != nil {
		return "", err
	}
	dir, err := cached(ctx, root, "postgres-"+version, func(dir string) error {
		return unpackPostgres(version, dir)
	})
	return filepath.Join(dir, "bin"), err
}

// unpackPostgres calls Start, the library's only function that downloads and unpacks. The rest of Start is useless
// here, and as root it always fails, so success means that the programs exist afterwards.
func unpackPostgres(version, dir string) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	scratch, err := newFolder(nil)
	if err != nil {
		return err
	}
	register(scratch)
	defer scratch.Close()
	pg := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(embeddedpostgres.PostgresVersion(version)).
		BinariesPath(dir).
		RuntimePath(filepath.Join(scratch.path, "runtime")).
		DataPath(filepath.Join(scratch.path, "data")).
		Port(uint32(port)).
		Logger(nil))
	if err = pg.Start(); err == nil {
		err = pg.Stop()
	}
	if _, _, missing := postgresVersion(filepath.Join(dir, "bin")); missing != nil {
		return errors.Join(err, missing)
	}
	return nil
}
