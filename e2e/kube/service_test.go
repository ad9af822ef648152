//go:build cluster

package kube

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"tidemill.dev/e2e/kube/images"
)

// A user's function is a Knative Service. An event starts the Service, the function answers with
// another event, and the Service scales back to zero.
func TestAUsersFunctionIsWokenFromZero(t *testing.T) {
	w := cluster(t)
	w.serve(t, "greeter", clusterLocal())
	w.seen.waitUntil(t, "the function to be at zero", w.isScaledToZero("greeter"))
	asked := w.mustPublish(t, "greeted", "guest-0", `{"name":"Ada"}`)
	w.wantAnswer(t, asked)
	w.seen.waitUntil(t, "the function to be at zero again", w.isScaledToZero("greeter"))
	w.noLetters(t, []string{"guest-0"})
}

// An event for a function that does not exist yet waits for the function, and arrives once.
func TestAnEventWaitsForAFunctionThatIsNotReady(t *testing.T) {
	w := cluster(t)
	asked := w.mustPublish(t, "late-asked", "guest-1", `{"name":"Bob"}`)
	// Later events are not delayed: another trigger's event is delivered.
	beside := w.mustPublish(t, "warm-asked", "beside-0", "")
	w.succeeds(t, "warm", beside.Subject)
	if early := w.answers(asked); len(early) > 0 {
		t.Fatalf("there is an answer %s, before there is a function", early[0].Data)
	}
	w.serve(t, "late", clusterLocal())
	w.wantAnswer(t, asked)
	w.noLetters(t, []string{"guest-1"})
}

// wantAnswer waits for a function's answer to an event, which must be the only one.
func (w *world) wantAnswer(t *testing.T, to accepted) {
	t.Helper()
	answer := w.journal.waitForEvent(t, "the function's answer", func(e entry) bool { return answered(e, to) })
	t.Logf("it said %s", answer.Data)
	// A later event of the same subject, which no function gets, is on the same partition. When the
	// later event has been read, a second answer would have been read too.
	last := w.mustPublish(t, "nobody-listens", to.Subject, "")
	w.journal.waitForEvent(t, "what was published behind it", func(e entry) bool { return e.ID == last.ID })
	if n := len(w.answers(to)); n != 1 {
		t.Errorf("it has %d answers", n)
	}
}

func (w *world) answers(to accepted) []entry {
	return w.journal.events(func(e entry) bool { return answered(e, to) })
}

func answered(e entry, to accepted) bool {
	return e.Type == "echoed" && cause(e) == to.ID
}

// serve creates a Knative Service of the test image.
func (w *world) serve(t *testing.T, name string, labels map[string]string) {
	t.Helper()
	nobody, no, yes := int64(65532), false, true
	s := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	s.Spec.Template.Annotations = map[string]string{"autoscaling.knative.dev/min-scale": "0", "autoscaling.knative.dev/window": "6s"}
	s.Spec.Template.Spec.AutomountServiceAccountToken = &no
	s.Spec.Template.Spec.Containers = []corev1.Container{{
		Image: images.Job, Args: []string{"serve"}, Ports: []corev1.ContainerPort{{ContainerPort: 8080}},
		ReadinessProbe:  &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/"}}, PeriodSeconds: 1},
		SecurityContext: &corev1.SecurityContext{RunAsUser: &nobody, RunAsNonRoot: &yes},
	}}
	must(t, create(t.Context(), w.server.serving, namespace, "services", s))
	eventually(t, "the function "+name+" to be ready", func(ctx context.Context) error {
		found, err := find(ctx, w.server.serving, namespace, "services", name, &servingv1.Service{})
		if err == nil && !found.IsReady() {
			err = fmt.Errorf("its conditions are %v", found.Status.Conditions)
		}
		return err
	})
}

// clusterLocal returns the labels of a function that only the cluster can reach.
func clusterLocal() map[string]string {
	return map[string]string{"networking.knative.dev/visibility": "cluster-local"}
}

// isScaledToZero reports whether a service is ready and has no pods.
func (w *world) isScaledToZero(name string) func() (string, bool) {
	return func() (string, bool) {
		n := len(w.seen.livePods(func(p *corev1.Pod) bool { return p.Labels[labelFunction] == name && p.DeletionTimestamp == nil }))
		return fmt.Sprint(n, " pods are there"), n == 0
	}
}
