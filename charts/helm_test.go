//go:build slow

package charts_test

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	chart = "tidemill"
	// kube is the Kubernetes version for which the chart is rendered without a cluster.
	kube = "1.35.0"
)

// runHelm runs helm, which is built the first time.
func runHelm(t *testing.T, args ...string) (out, errs string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
	defer cancel()
	path, err := exec.CommandContext(ctx, "../.ci/helm-install").Output()
	if err != nil {
		t.Fatalf("build helm: %v", err)
	}
	var o, e bytes.Buffer
	c := exec.CommandContext(ctx, strings.TrimSpace(string(path)), args...)
	c.Stdout, c.Stderr = &o, &e
	err = c.Run()
	return o.String(), e.String(), err
}

// render returns the manifests that helm would apply.
func render(t *testing.T, values string, more ...string) string {
	t.Helper()
	out, errs, err := runHelm(t, append([]string{"template", "tidemill", chart, "--namespace", "ml", "--kube-version", kube, "-f", values}, more...)...)
	if err != nil {
		t.Fatalf("helm template -f %s: %v\n%s", values, err, errs)
	}
	return out
}

// valuesFiles returns the files of values, by case name.
func valuesFiles(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.values.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no values to render: %v", err)
	}
	all := map[string]string{}
	for _, f := range files {
		all[strings.TrimSuffix(filepath.Base(f), ".values.yaml")] = f
	}
	return all
}
