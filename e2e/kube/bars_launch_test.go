//go:build cluster

package kube

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tidemill.dev"
	"tidemill.dev/e2e/kube/images"
)

const (
	awakeTimes = 100
	zeroTimes  = 5
)

// barAwake measures the time from the gateway's answer to the Job, with train awake. The pods get
// no node, because their work is not measured. If rests is true, the next event waits until the
// last pod has been seen. Otherwise the next event comes as soon as the last event has its Job.
// Then the cluster's work for the last pod uses the CPUs too.
func (w *world) barAwake(t *testing.T, name string, rests bool) bar {
	b := bar{what: "event accepted → Job, train awake, " + name, floor: "a bare Job", wanted: "p50 ≤ 25ms, p99 ≤ 150ms"}
	w.toJob(t, "bar-awake-warmup-"+name)
	way, before := stagesToJob(), spentSoFar()
	for i := range awakeTimes {
		asked := w.mustPublish(t, "placeless-asked", fmt.Sprint("bar-awake-", name, "-", i), "")
		at := w.jobOf(t, asked.Subject)
		b.is = append(b.is, at.Sub(asked.At))
		way.toJob(t, w, asked, at)
		if rests {
			w.journal.waitForEvent(t, "what it waits for", isEvent(tidemill.TypeRunSeen, asked.Subject))
		}
	}
	b.more = way.String() + spentSoFar().since(before, awakeTimes)
	for i := range awakeTimes {
		b.floors = append(b.floors, w.bareJob(t, fmt.Sprint("bare-", name, "-", i)))
	}
	w.cancelAll(t, "placeless")
	return b
}

// toJob returns the time from an event to its Job.
func (w *world) toJob(t *testing.T, key string) time.Duration {
	t.Helper()
	asked := w.mustPublish(t, "placeless-asked", key, "")
	return w.jobOf(t, key).Sub(asked.At)
}

// jobOf returns the time at which the watch reported the Job of a key.
func (w *world) jobOf(t *testing.T, key string) (at time.Time) {
	t.Helper()
	w.seen.waitUntil(t, "the Job for "+key, func() (string, bool) {
		jobs := w.seen.allJobs(func(j *batchv1.Job) bool { return j.Annotations[annotationKey] == key })
		if len(jobs) > 0 {
			at = jobs[0].Added
		}
		return "there is none", len(jobs) > 0
	})
	return at
}

// bareJob returns the time from creating a single Job to the watch's report.
func (w *world) bareJob(t *testing.T, name string) time.Duration {
	t.Helper()
	suspended := true
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{annotationKey: name}}, Spec: batchv1.JobSpec{Suspend: &suspended,
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "run", Image: images.Job}}}}}}
	began := time.Now()
	must(t, create(t.Context(), w.server.batch, namespace, "jobs", j))
	took := w.jobOf(t, name).Sub(began)
	background := metav1.DeletePropagationBackground
	must(t, w.server.batch.Delete().Namespace(namespace).Resource("jobs").Name(name).Body(&metav1.DeleteOptions{PropagationPolicy: &background}).Do(t.Context()).Error())
	return took
}

// barFromZero measures the time from the gateway's answer to the Job with train at zero. For
// comparison it measures Knative's time to start a function that only answers.
func (w *world) barFromZero(t *testing.T) bar {
	b := bar{what: "event accepted → Job, train at zero", floor: "Knative wakes a bare function", wanted: "≤ 2s"}
	w.serve(t, "bare", nil) // called from outside the cluster
	for i := range zeroTimes {
		w.atRest(t)
		b.is = append(b.is, w.toJob(t, fmt.Sprint("bar-zero-", i)))
		w.cancelAll(t, "placeless")
	}
	for range zeroTimes {
		w.atRest(t)
		b.floors = append(b.floors, w.callUntilAnswered(t, "bare"))
	}
	return b
}

// callUntilAnswered calls a function through the ingress until it has answered.
func (w *world) callUntilAnswered(t *testing.T, name string) time.Duration {
	t.Helper()
	began := time.Now()
	eventually(t, "the function's answer", func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.sandbox.Ingress+"/", nil)
		if err != nil {
			return err
		}
		req.Host = name + "." + namespace + "." + w.sandbox.Domain
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if text, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", res.Status, text)
		}
		return nil
	})
	return time.Since(began)
}
