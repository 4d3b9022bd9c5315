package localcloud

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// ErrNotInstalled is wrapped by the error of StartSpanner or StartPubSub where the
// emulator (or Java) is not on this machine. The error's text says what to install.
var ErrNotInstalled = errors.New("not installed")

// The two emulators as gcloud, apt and Docker name them.
const (
	spannerComponent = "cloud-spanner-emulator"
	pubsubComponent  = "pubsub-emulator"
	spannerPackage   = "google-cloud-cli-spanner-emulator"
	pubsubPackage    = "google-cloud-cli-pubsub-emulator"
	spannerImage     = "gcr.io/cloud-spanner-emulator/emulator"
	pubsubImage      = "gcr.io/google.com/cloudsdktool/google-cloud-cli:emulators"
)

// finder looks for emulators. Its fields are what it may ask of the machine.
type finder struct {
	getenv   func(string) string
	lookPath func(string) (string, error)
}

func newFinder(getenv func(string) string) finder {
	return finder{getenv: getenv, lookPath: exec.LookPath}
}

// roots lists the folders that may be a gcloud SDK, likeliest first. Asking
// `gcloud info` would answer exactly and take a second each time; the SDK's root is
// the parent of the folder of the real gcloud script instead.
func (f finder) roots() []string {
	var roots []string
	add := func(dir string) {
		if dir != "" && !slices.Contains(roots, dir) {
			roots = append(roots, dir)
		}
	}
	add(f.getenv("CLOUDSDK_ROOT_DIR"))
	add(f.getenv("CLOUDSDK_ROOT"))
	if gcloud, err := f.lookPath("gcloud"); err == nil {
		if real, err := filepath.EvalSymlinks(gcloud); err == nil {
			add(filepath.Dir(filepath.Dir(real)))
		}
	}
	if home := f.getenv("HOME"); home != "" {
		add(filepath.Join(home, "google-cloud-sdk"))
	}
	for _, dir := range []string{
		"/usr/lib/google-cloud-sdk",            // apt, yum
		"/usr/local/google-cloud-sdk",          // archives, Google's container images
		"/opt/google-cloud-sdk",                //
		"/google-cloud-sdk",                    // google/cloud-sdk:alpine
		"/opt/homebrew/share/google-cloud-sdk", // Homebrew
		"/usr/local/share/google-cloud-sdk",
		"/snap/google-cloud-cli/current",
	} {
		add(dir)
	}
	return roots
}

// spanner returns the path of emulator_main, which serves gRPC by itself. The
// gateway beside it only adds REST, and orphans emulator_main when it is killed.
func (f finder) spanner() (string, error) {
	for _, root := range f.roots() {
		if bin := filepath.Join(root, "bin", "cloud_spanner_emulator", "emulator_main"); executable(bin) {
			return bin, nil
		}
	}
	for _, name := range []string{"emulator_main", "cloud_spanner_emulator"} {
		bin, err := f.lookPath(name)
		if err != nil {
			continue
		}
		if real, err := filepath.EvalSymlinks(bin); err == nil && executable(filepath.Join(filepath.Dir(real), "emulator_main")) {
			return filepath.Join(filepath.Dir(real), "emulator_main"), nil
		}
	}
	return "", fmt.Errorf("spanner emulator %w. %s", ErrNotInstalled,
		installAdvice(runtime.GOOS, spannerComponent, spannerPackage, spannerImage, "SPANNER_EMULATOR_HOST"))
}

// pubsub returns the command line of the Pub/Sub emulator without host and port.
func (f finder) pubsub() ([]string, error) {
	jar := f.pubsubJar()
	if jar == "" {
		return nil, fmt.Errorf("pub/sub emulator %w. %s", ErrNotInstalled,
			installAdvice(runtime.GOOS, pubsubComponent, pubsubPackage, pubsubImage, "PUBSUB_EMULATOR_HOST"))
	}
	java, err := f.java()
	if err != nil {
		return nil, err
	}
	// Without the first two the JVM sizes itself by the machine: 600 MB and a thread per
	// core. Without the third it takes its charset from the locale, and in a bare one
	// replaces all but ASCII in attributes that become headers of an unwrapped push.
	return []string{java, "-XX:+UseSerialGC", "-Xmx256m", "-Dfile.encoding=UTF-8", "-jar", jar}, nil
}

func (f finder) pubsubJar() string {
	libs := []string{}
	for _, root := range f.roots() {
		libs = append(libs, filepath.Join(root, "platform", "pubsub-emulator", "lib"))
	}
	for _, name := range []string{"cloud-pubsub-emulator", "pubsub-emulator"} {
		if bin, err := f.lookPath(name); err == nil {
			if real, err := filepath.EvalSymlinks(bin); err == nil {
				libs = append(libs, filepath.Join(filepath.Dir(filepath.Dir(real)), "lib"))
			}
		}
	}
	for _, lib := range libs {
		if jars, _ := filepath.Glob(filepath.Join(lib, "cloud-pubsub-emulator-*-all.jar")); len(jars) > 0 {
			return slices.Max(jars)
		}
	}
	return ""
}

func (f finder) java() (string, error) {
	if home := f.getenv("JAVA_HOME"); home != "" {
		if bin := filepath.Join(home, "bin", "java"); executable(bin) {
			return bin, nil
		}
	}
	// macOS has a /usr/bin/java that only opens a dialogue; its message, kept in the
	// child's output, is then the explanation.
	if bin, err := f.lookPath("java"); err == nil {
		return bin, nil
	}
	return "", fmt.Errorf("java %w, and the Pub/Sub emulator needs version 11 or newer. "+
		"Debian, Ubuntu: apt-get install default-jre-headless; macOS: brew install openjdk", ErrNotInstalled)
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// installAdvice is the sentence that gets a person on this platform going.
func installAdvice(goos, component, pkg, image, variable string) string {
	way := "gcloud components install " + component
	if goos == "linux" {
		way += ", or, where gcloud came by apt, apt-get install " + pkg
	}
	return fmt.Sprintf("Install it: %s. Or run Google's image %s and set %s to its host:port", way, image, variable)
}

// sdkVersion is the version of an SDK component as the SDK itself records it (the
// emulator binary tells nobody), or "" where it is not part of an SDK.
func sdkVersion(binary, component string) string {
	root := filepath.Dir(filepath.Dir(filepath.Dir(binary))) // <root>/bin/cloud_spanner_emulator/emulator_main
	// The component proper is a wrapper; the files come from one per platform.
	snapshots, _ := filepath.Glob(filepath.Join(root, ".install", component+"*.snapshot.json"))
	for _, path := range snapshots {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		var snapshot struct {
			Components []struct {
				ID      string
				Version struct {
					Text string `json:"version_string"`
				}
			}
		}
		if json.Unmarshal(data, &snapshot) != nil {
			continue
		}
		for _, c := range snapshot.Components {
			if strings.HasPrefix(c.ID, component) && c.Version.Text != "" {
				return c.Version.Text
			}
		}
	}
	return ""
}

// versionBefore reports whether the dotted version a is older than b. A version
// that cannot be read is older than every other.
func versionBefore(a, b string) bool {
	as, okA := versionNumbers(a)
	bs, okB := versionNumbers(b)
	if !okA || !okB {
		return !okA && okB
	}
	return slices.Compare(as, bs) < 0
}

func versionNumbers(v string) ([]int, bool) {
	var numbers []int
	for part := range strings.SplitSeq(v, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil, false
		}
		numbers = append(numbers, n)
	}
	return numbers, true
}

// CheckInstalled reports what StartSpanner and StartPubSub would miss on this
// machine, both at once; nil where both could start (or their variables are set).
func CheckInstalled(getenv func(string) string) error {
	f := newFinder(getenv)
	var errs []error
	if getenv(SpannerVariable) == "" {
		_, err := f.spanner()
		errs = append(errs, err)
	}
	if getenv(PubSubVariable) == "" {
		_, err := f.pubsub()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
