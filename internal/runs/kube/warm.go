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

// maxStale is the number of unusable pods in a row after which takeOver gives up.
const maxStale = 3

// takeOver gives an attempt to a waiting pod; false if no pod waits. Only one caller gets a pod.
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

// hand checks a pod, labels it with the attempt's name, and then gives it the attempt. In this
// order, the attempt is found by its label as soon as it may have begun. A pod whose report was
// wrong must exit. If Give fails, the pod may have received the attempt. The attempt is then lost,
// because a Job for it could run it a second time with the same token. It is also lost if the pod's
// label is uncertain, because the end of the pod would count as the end of the Job. After ErrTaken,
// the pod has certainly not received the attempt.
func (l *launcher) hand(ctx context.Context, pod warmpods.Pod, a scheduler.Attempt) (bool, error) {
	was, err := l.rename(ctx, pod, a)
	if errors.Is(err, errUnsure) {
		return true, errors.Join(err, l.dismiss(ctx, pod))
	}
	if err != nil {
		l.c.log.Warn("kube: assigning a waiting pod failed; the attempt gets a new pod", "run", a.Run, "recipe", a.Recipe, "key", a.Key, "reason", err)
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

// errUnsure marks an error after which the pod may have the old or the new label.
var errUnsure = errors.New("it may bear the attempt's name by now")

// dismiss tells a taken pod to exit, unless another launcher has taken the pod meanwhile.
func (l *launcher) dismiss(ctx context.Context, pod warmpods.Pod) error {
	if err := l.c.o.Warm.Give(ctx, pod, warmpods.Offer{}); err != nil && !errors.Is(err, warmpods.ErrTaken) {
		return fmt.Errorf("have the pod %s leave: %w", pod.Name, err)
	}
	return nil
}

// rename gives a pod the labels of another attempt, if the pod's state agrees with its report and
// does not change meanwhile. It returns the pod before the change; nil if the pod cannot be used.
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
	if !isWaitingPod(is, pod, l.site.names.Install()) {
		return nil, nil
	}
	err = l.patch(ctx, pod.Name, map[string]any{"resourceVersion": is.ResourceVersion,
		"labels": labelsOf(l.site.names, a), "annotations": map[string]string{AnnotationKey: a.Key}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil, nil
	}
	if err != nil && isUndecided(err) {
		return nil, fmt.Errorf("%w: %w", errUnsure, err)
	}
	if err != nil {
		return nil, err
	}
	return is, nil
}

// patch changes a pod's labels and annotations.
func (l *launcher) patch(ctx context.Context, pod string, metadata map[string]any) error {
	text, err := json.Marshal(map[string]any{"metadata": metadata})
	if err == nil {
		_, err = l.c.clients.pods.Patch(ctx, pod, types.MergePatchType, text)
	}
	if err != nil {
		return fmt.Errorf("label the pod %s with its run: %w", pod, err)
	}
	return nil
}

// isWaitingPod reports whether a pod agrees with a waiting pod's report: the pod has not ended, and
// it has the label of its last attempt. The pod's phase need not be Running, because the kubelet
// reports that phase up to a second later.
func isWaitingPod(is *corev1.Pod, said warmpods.Pod, install string) bool {
	return is.Status.Phase != corev1.PodSucceeded && is.Status.Phase != corev1.PodFailed && is.DeletionTimestamp == nil &&
		is.Labels[LabelInstall] == install && is.Labels[LabelAttempt] == said.Attempt
}
