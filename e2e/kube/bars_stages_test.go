//go:build cluster

package kube

import (
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"tidemill.dev"
)

// stages divides a duration into stages, using times that the system notes anyway.
type stages struct {
	names []string
	took  [][]time.Duration
}

func stagesOf(names ...string) *stages {
	return &stages{names: names, took: make([][]time.Duration, len(names))}
}

// pass adds one measurement: its beginning, and the end of each stage.
func (s *stages) pass(began time.Time, ended ...time.Time) {
	for i, at := range ended {
		s.took[i] = append(s.took[i], at.Sub(began))
		began = at
	}
}

func stagesToJob() *stages {
	return stagesOf(
		"accepted → the wish is written", // dispatcher, Knative, train
		"→ an attempt is proposed",       // log, fold, claim, plan
		"→ its Job is seen")              // log, fold, API server, watch
}

// toJob adds the stages of one event. Both facts are on their stream when there is a Job.
func (s *stages) toJob(t *testing.T, w *world, asked accepted, job time.Time) {
	t.Helper()
	wish := w.journal.waitForEvent(t, "the wish", isEvent(tidemill.TypeRunRequested, asked.Subject))
	start := w.journal.waitForEvent(t, "the start", isEvent(tidemill.TypeRunStarted, asked.Subject))
	s.pass(asked.At, writtenAt(t, wish), writtenAt(t, start), job)
}

func stagesToGone() *stages {
	return stagesOf(
		"last step → the end is written", // output, log, digest
		"→ the Job is gone",              // log, fold, controller
		"→ the pod is told to go",        // its owned objects are collected
		"→ the pod is gone")              // kubelet
}

// toGone adds the stages of the end of one run.
func (s *stages) toGone(t *testing.T, w *world, key string, ended time.Time, job *seen[*batchv1.Job], pod *seen[*corev1.Pod]) {
	t.Helper()
	end := w.journal.waitForEvent(t, "the end", isEvent(tidemill.TypeRunFinished, key))
	s.pass(ended, writtenAt(t, end), job.Gone, pod.Told, pod.Gone)
}

// writtenAt returns the time at which a fact was created, before it was sent.
func writtenAt(t *testing.T, e entry) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, e.Time)
	must(t, err)
	return at
}

func (s *stages) String() string {
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "STAGE\tP50\tP99")
	for i, name := range s.names {
		fmt.Fprintf(table, "%s\t%s\t%s\n", name, quantile(s.took[i], 50), quantile(s.took[i], 99))
	}
	_ = table.Flush() // writing to a buffer cannot fail
	return out.String()
}
