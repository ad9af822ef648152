//go:build cluster

package kube

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"tidemill.dev/broker/brokertest/realservers"
	"tidemill.dev/e2e/kube/images"
)

// Paths in the repository, from this folder.
const (
	chart       = "../../charts/tidemill"
	helmInstall = "../../.ci/helm-install"
	valuesFile  = "testdata/values.yaml"
	configFile  = "testdata/tidemill.yaml"
)

// buildHelm returns the path of helm, which is built the first time.
func buildHelm(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, helmInstall)
	var said strings.Builder
	cmd.Stderr = &said
	path, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("build helm: %w: %s", err, said.String())
	}
	return strings.TrimSpace(string(path)), nil
}

// upgrade installs or upgrades the chart, and waits until it is ready. more has further arguments
// for helm.
func (w *world) upgrade(ctx context.Context, config string, more ...string) error {
	args := append([]string{"upgrade", "--install", release, chart, "--namespace", namespace, "--kubeconfig", w.sandbox.Kubeconfig,
		"--wait", "--timeout", "10m", "--values", valuesFile, "--values", w.addresses(), "--set-file", "configFile=" + config}, more...)
	cmd := exec.CommandContext(ctx, w.helm, args...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+w.dir, "HELM_CONFIG_HOME="+w.dir, "HELM_DATA_HOME="+w.dir)
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("helm upgrade --install: %w: %s", err, said)
	}
	return nil
}

func (w *world) addresses() string { return filepath.Join(w.dir, "addresses.yaml") }

// install installs Tidemill into the namespace.
func (w *world) install(ctx context.Context) error {
	store, err := w.s3.Bucket(bucket)
	if err != nil {
		return err
	}
	colon := strings.LastIndex(images.Tidemill, ":")
	values := fmt.Sprintf(`
image: {repository: %q, tag: %q}
kafka: {address: %q}
redis: {address: %q}
store:
  url: %q
  env:
    - {name: AWS_ACCESS_KEY_ID, value: %q}
    - {name: AWS_SECRET_ACCESS_KEY, value: %q}
`, images.Tidemill[:colon], images.Tidemill[colon+1:], w.kafka.Addr(), w.redis.Addr(), store, realservers.S3AccessKey, realservers.S3SecretKey)
	if err := os.WriteFile(w.addresses(), []byte(values), 0o600); err != nil {
		return err
	}
	return w.upgrade(ctx, configFile)
}
