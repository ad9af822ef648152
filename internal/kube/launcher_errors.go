package kube

import (
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"tidemill.dev/internal/runs"
)

// verdict is what an answer of the API server means for an attempt.
type verdict struct {
	hopeless bool   // another attempt would be answered so too
	next     string // what to do about it
}

// judge reads such an answer. What a person may mend while the run waits is not
// hopeless: a run that is given up has to be asked for again.
func judge(err error) verdict {
	text := err.Error()
	switch {
	case errors.Is(err, runs.ErrUnlaunchable):
		return verdict{hopeless: true}
	case apierrors.IsForbidden(err) && strings.Contains(text, "exceeded quota"):
		return verdict{next: "it is tried again; give the namespace more quota, or the pool fewer slots"}
	case apierrors.IsForbidden(err) && strings.Contains(text, "is being terminated"):
		return verdict{next: "the namespace is being removed"}
	case strings.Contains(text, "denied the request") || strings.Contains(text, "ValidatingAdmissionPolicy"):
		return verdict{true, "a rule of the cluster forbids it: change the recipe, or the rule"}
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		return verdict{true, "mend what it names in the recipe or the pool"}
	case apierrors.IsRequestEntityTooLargeError(err):
		return verdict{true, "make what the recipe says shorter"}
	case apierrors.IsForbidden(err):
		return verdict{next: "the service account may not do it: bind its role again, as the chart does"}
	case apierrors.IsUnauthorized(err):
		return verdict{next: "the API server does not know us: look at the service account's token, or the kubeconfig's"}
	case apierrors.IsNotFound(err):
		return verdict{next: "the namespace is not there: make it, or name another with --namespace"}
	}
	return verdict{next: "it is tried again; look whether the API server is well"}
}

// sorted is an error with its next step, and ErrUnlaunchable where there is no
// hope.
func sorted(what, name string, err error) error {
	if err == nil {
		return nil
	}
	v := judge(err)
	switch {
	case v.next == "":
		return fmt.Errorf("%s %s: %w", what, name, err)
	case v.hopeless:
		return fmt.Errorf("%s %s: %w: %s: %w", what, name, err, v.next, runs.ErrUnlaunchable)
	}
	return fmt.Errorf("%s %s: %w: %s", what, name, err, v.next)
}

// unanswered finds errors after which nobody knows more than before: the API
// server is away, or has too much to do.
func unanswered(err error) bool {
	if errors.Is(err, runs.ErrUnlaunchable) {
		return false
	}
	if said := apierrors.APIStatus(nil); !errors.As(err, &said) {
		return true // no answer of the API server's
	}
	return apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsUnexpectedServerError(err)
}
