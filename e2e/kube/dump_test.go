//go:build cluster

package kube

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"tidemill.dev/internal/gateway/client"
)

const (
	dumpWithin = time.Minute
	logLines   = 40
	runsShown  = 30

	componentLines = 6
	sandboxes      = "/var/tmp/tidemill-cluster" // folder in which e2e/cluster keeps each sandbox's files
)

// dump writes all data that helps to explain a failure, before the cluster is torn down.
func (w *world) dump(ctx context.Context, to io.Writer) {
	ctx, cancel := context.WithTimeout(ctx, dumpWithin)
	defer cancel()
	if w.server == nil {
		return
	}
	w.dumpPods(ctx, to)
	w.dumpEvents(ctx, to)
	w.dumpRuns(ctx, to)
	w.dumpSandbox(to)
}

func (w *world) dumpPods(ctx context.Context, to io.Writer) {
	all, err := list(ctx, w.server.core, namespace, "pods", &corev1.PodList{})
	if err != nil {
		fmt.Fprintln(to, "the pods cannot be listed:", err)
		return
	}
	for i := range all.Items {
		p := &all.Items[i]
		fmt.Fprintf(to, "== pod %s on %q: %s %s %s\n", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.Reason, p.Status.Message)
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			w.dumpContainer(ctx, to, p, c)
		}
	}
}

func (w *world) dumpContainer(ctx context.Context, to io.Writer, p *corev1.Pod, c corev1.ContainerStatus) {
	fmt.Fprintf(to, "-- container %s: ready %v, started %d times again, %s\n", c.Name, c.Ready, c.RestartCount, stateOf(c.State))
	for _, previous := range []bool{true, false} {
		if previous && c.RestartCount == 0 {
			continue
		}
		text, err := w.server.log(ctx, p, c.Name, logLines, previous)
		if err != nil {
			text = err.Error()
		}
		fmt.Fprintln(to, indent(text))
	}
}

func stateOf(s corev1.ContainerState) string {
	switch {
	case s.Waiting != nil:
		return "waits: " + s.Waiting.Reason + " " + s.Waiting.Message
	case s.Terminated != nil:
		return fmt.Sprintf("ended with %d: %s %s", s.Terminated.ExitCode, s.Terminated.Reason, s.Terminated.Message)
	}
	return "runs"
}

func (w *world) dumpEvents(ctx context.Context, to io.Writer) {
	all, err := list(ctx, w.server.core, namespace, "events", &corev1.EventList{})
	if err != nil {
		fmt.Fprintln(to, "the events cannot be listed:", err)
		return
	}
	fmt.Fprintln(to, "== events that are no news of normal life")
	for _, e := range all.Items {
		if e.Type != corev1.EventTypeNormal {
			fmt.Fprintf(to, "%s %s %s: %s\n", e.LastTimestamp.Format(time.TimeOnly), e.InvolvedObject.Name, e.Reason, e.Message)
		}
	}
}

func (w *world) dumpRuns(ctx context.Context, to io.Writer) {
	if w.door == nil {
		return
	}
	page, err := w.door.Runs(ctx, client.RunQuery{Limit: runsShown})
	if err != nil {
		fmt.Fprintln(to, "the runs cannot be listed:", err)
	}
	fmt.Fprintln(to, "== runs")
	for _, r := range page.Runs {
		fmt.Fprintf(to, "%s %s: %s\n", r.Recipe, r.Key, inWords(r))
	}
	if w.journal == nil {
		return
	}
	fmt.Fprintln(to, "== dead letters")
	for _, e := range w.journal.events(func(e entry) bool { return e.stream == "dead-letters" }) {
		fmt.Fprintf(to, "%s %s %s\n", e.Type, e.Subject, e.Data)
	}
}

// dumpSandbox writes the last log lines of the cluster's components.
func (w *world) dumpSandbox(to io.Writer) {
	logs, err := filepath.Glob(filepath.Join(sandboxes, w.name, "log", "*.log"))
	if err != nil {
		fmt.Fprintln(to, "the sandbox's logs cannot be found:", err)
	}
	for _, file := range append(logs, filepath.Join(w.dir, "sandbox.log")) {
		text, err := os.ReadFile(file)
		if err != nil {
			text = []byte(err.Error())
		}
		lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
		fmt.Fprintf(to, "== the end of %s\n%s\n", filepath.Base(file), bytes.Join(lines[max(0, len(lines)-componentLines):], []byte("\n")))
	}
}

func indent(text string) string {
	return "   " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n   ")
}
