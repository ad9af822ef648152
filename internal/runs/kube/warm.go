package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"tidemill.dev/internal/runs/scheduler"
	"tidemill.dev/internal/runs/warmpods"
)

// maxStale is how many pods in a row may turn out to have gone before it is not
// worth to ask for another.
const maxStale = 3

// takeOver gives an attempt to a pod that has done its own and waits; false if
// none does. Who asks for a pod gets none that anybody else gets.
func (l *launcher) takeOver(ctx context.Context, a scheduler.Attempt) (bool, error) {
	for range maxStale {
		pod, there, err := l.c.o.Warm.Take(ctx, warmpods.Shape(a.Plan))
		if err != nil {
			l.c.log.Warn("kube: looking for a waiting pod failed; the attempt gets a new pod", "run", a.Run, "recipe", a.Recipe, "key", a.Key, "reason", err)
			return false, nil
		}
		if !there {
			return false, nil
		}
		taken, err := l.hand(ctx, pod, a)
		if taken || err != nil {
			return taken, err
		}
	}
	return false, nil
}

// hand makes sure of a pod, has it bear the attempt's name, and then tells it. In
// this order: who looks for the attempt finds it from the moment on that it may
// have begun. A pod that is not what it said is told to leave.
//
// Where the pod cannot be told, nobody knows whether it was. The attempt counts
// as lost then: to make it a Job as well could have it run twice with one token.
// So it does where nobody knows what the pod is called: its end would be taken for
// that of the Job beside it. Where somebody else has told it something since, it surely was not.
func (l *launcher) hand(ctx context.Context, pod warmpods.Pod, a scheduler.Attempt) (bool, error) {
	was, err := l.rename(ctx, pod, a)
	if errors.Is(err, errUnsure) {
		return true, errors.Join(err, l.dismiss(ctx, pod))
	}
	if err != nil {
		l.c.log.Warn("a pod that waits cannot be had", "run", a.Run, "recipe", a.Recipe, "key", a.Key, "reason", err)
	}
	if was == nil {
		return false, l.dismiss(ctx, pod)
	}
	err = l.c.o.Warm.Give(ctx, pod, warmpods.Offer{Attempt: a.Name, Token: a.Token})
	if errors.Is(err, warmpods.ErrTaken) {
		return false, l.patch(ctx, pod.Name, map[string]any{"labels": was.Labels, "annotations": was.Annotations})
	}
	return true, err
}

// errUnsure is in an error after which a pod may be called either way.
var errUnsure = errors.New("it may bear the attempt's name by now")

// dismiss tells a pod that was taken to leave. One that is not ours any more is
// told by others.
func (l *launcher) dismiss(ctx context.Context, pod warmpods.Pod) error {
	if err := l.c.o.Warm.Give(ctx, pod, warmpods.Offer{}); err != nil && !errors.Is(err, warmpods.ErrTaken) {
		return fmt.Errorf("have the pod %s leave: %w", pod.Name, err)
	}
	return nil
}

// rename has a pod bear the labels of another attempt, if it still is what it
// said: nobody has changed it between the look and the change. It is the pod as
// it was; nil if it is not to be had.
func (l *launcher) rename(ctx context.Context, pod warmpods.Pod, a scheduler.Attempt) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	is, err := l.c.clients.pods.Get(ctx, pod.Name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at the pod %s: %w", pod.Name, err)
	}
	if !waits(is, pod, l.site.names.Install()) {
		return nil, nil
	}
	err = l.patch(ctx, pod.Name, map[string]any{"resourceVersion": is.ResourceVersion,
		"labels": labelsOf(l.site.names, a), "annotations": map[string]string{AnnotationKey: a.Key}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil, nil
	}
	if err != nil && unanswered(err) {
		return nil, fmt.Errorf("%w: %w", errUnsure, err)
	}
	if err != nil {
		return nil, err
	}
	return is, nil
}

// patch changes what a pod is called.
func (l *launcher) patch(ctx context.Context, pod string, metadata map[string]any) error {
	text, err := json.Marshal(map[string]any{"metadata": metadata})
	if err == nil {
		_, err = l.c.clients.pods.Patch(ctx, pod, types.MergePatchType, text)
	}
	if err != nil {
		return fmt.Errorf("name the pod %s after what it does: %w", pod, err)
	}
	return nil
}

// waits reports whether a pod is the one that said it waits: it has not ended, and
// nobody has had it do something else. That it runs it has said itself; the node
// tells the API server so only a second later.
func waits(is *corev1.Pod, said warmpods.Pod, install string) bool {
	return is.Status.Phase != corev1.PodSucceeded && is.Status.Phase != corev1.PodFailed && is.DeletionTimestamp == nil &&
		is.Labels[LabelInstall] == install && is.Labels[LabelAttempt] == said.Attempt
}
