package services

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
)

const (
	kafkaVersion = "4.2.0"
	oldestJava   = 17
)

//go:embed pom.xml
var pom []byte

// kafkaOnJava returns the java program and the folder of jars for a broker. Its error wraps ErrNotInstalled if Java or
// Maven is missing or unusable.
func kafkaOnJava(ctx context.Context, opts Options) (java, jars string, err error) {
	if java, err = findJava(ctx); err != nil {
		return "", "", lacking(err)
	}
	root, err := userCache()
	if err != nil {
		return "", "", err
	}
	const name = "kafka-" + kafkaVersion
	log := filepath.Join(root, name+".log")
	defer opts.watch("waiting for the jars of kafka "+kafkaVersion, log)()
	jars, err = cached(ctx, root, name, func(dir string) error {
		return resolveJars(ctx, dir, log, opts)
	})
	return java, jars, err
}

func lacking(err error) error {
	return fmt.Errorf("%w: %w: install Java %d or later and Maven", ErrNotInstalled, err, oldestJava)
}

var javaVersion = regexp.MustCompile(`version "(\d+)`)

func findJava(ctx context.Context) (string, error) {
	var java string
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java, _ = exec.LookPath(filepath.Join(home, "bin", "java"))
	}
	if java == "" {
		java, _ = exec.LookPath("java")
	}
	if java == "" {
		return "", errors.New("no java in JAVA_HOME or PATH")
	}
	out, err := exec.CommandContext(ctx, java, "-version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s -version: %w", java, err)
	}
	found := javaVersion.FindSubmatch(out)
	if found == nil {
		return "", fmt.Errorf("%s -version: no version number in its answer", java)
	}
	if major, _ := strconv.Atoi(string(found[1])); major < oldestJava {
		return "", fmt.Errorf("%s is version %s, too old for kafka", java, found[1])
	}
	return java, nil
}

// resolveJars downloads the jars into dir. Maven's output stays in the log, which others waiting for it read.
func resolveJars(ctx context.Context, dir, log string, opts Options) error {
	maven, err := exec.LookPath("mvn")
	if err != nil {
		return lacking(errors.New("no mvn in PATH"))
	}
	opts.say("fetching kafka %s with maven, once; log: %s", kafkaVersion, log)
	project := filepath.Join(filepath.Dir(dir), "pom.xml")
	if err := os.WriteFile(project, pom, 0o644); err != nil {
		return err
	}
	out, err := os.Create(log)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(maven, "-B", "-f", project,
		"org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory="+dir)
	cmd.SysProcAttr = childAttributes(nil, syscall.SIGTERM)
	if err := runLogged(ctx, cmd, out); err != nil {
		return lacking(fmt.Errorf("maven (its log: %s): %w", log, err))
	}
	return nil
}
