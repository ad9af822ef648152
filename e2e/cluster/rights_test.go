//go:build linux

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestRightsOfNobody runs up without rights. It must fail before anything is started or built.
func TestRightsOfNobody(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "cluster")
	must(t, exec.Command("go", "build", "-o", program, "."))
	cmd := exec.Command(program, "up", "--name", "nobodys")
	if os.Geteuid() == 0 {
		reachable(t, dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	said, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitCannot {
		t.Errorf("it ends with %v", err)
	}
	if !strings.Contains(string(said), "you are not root") {
		t.Errorf("it says %q", said)
	}
}

// reachable lets other users into a test's folder.
func reachable(t *testing.T, dir string) {
	t.Helper()
	for ; strings.HasPrefix(dir, os.TempDir()+"/"); dir = filepath.Dir(dir) {
		check(t, os.Chmod(dir, 0o755))
	}
}

func TestParseUp(t *testing.T) {
	w, err := parseUp(strings.Fields("--name mine --gpus 2 --subnet 10.231.0.4/30 --kwok --bare --kubeconfig k"))
	want := wishes{name: "mine", subnet: "10.231.0.4/30", kubeconfig: "k", gpus: 2, product: "NVIDIA-A100-SXM4-80GB", kwok: true, bare: true}
	if w != want || err != nil {
		t.Errorf("%+v, %v; want %+v", w, err, want)
	}
	for _, bad := range []string{"", "--gpus 2", "--name a --gpus many", "--name a what", "--nmae a"} {
		if _, err := parseUp(strings.Fields(bad)); !errors.Is(err, errUsage) {
			t.Errorf("%q gives %v", bad, err)
		}
	}
}

func TestReport(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		said string
	}{
		{nil, 0, ""},
		{errors.Join(errCannot, errors.New("no cgroups")), exitCannot, "no cgroups"},
		{errors.Join(errUsage, errors.New("what is it")), exitUsage, "usage: cluster"},
		{errors.New("the disk is full"), exitFailed, "cluster: the disk is full"},
	} {
		var said strings.Builder
		if got := report(&said, c.err); got != c.code || !strings.Contains(said.String(), c.said) {
			t.Errorf("%v exits with %d and says %q", c.err, got, said.String())
		}
	}
}
