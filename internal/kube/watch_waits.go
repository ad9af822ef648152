package kube

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"tidemill.dev"
)

// waits reads why a container does not begin. It is false where that is as it
// should be.
func (r *reading) waits(s *corev1.ContainerStatus, w *corev1.ContainerStateWaiting) bool {
	whose, ours := "image "+s.Image, s.Name == containerInstall
	if ours { // no run is to blame, and the next upgrade may bring one that is there
		whose = "our own image " + s.Image
	}
	switch w.Reason {
	case "ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError", "SignatureValidationFailed":
		r.pending, r.trouble = whose+" cannot be pulled: "+pulling(w.Message), troubleImage
		if hopeless(w.Message) && !ours {
			r.end = unusable("image", r.pending)
		}
	case "InvalidImageName":
		r.end = unusable("image", whose+" is no name of an image: "+pulling(w.Message))
	case "ErrImageNeverPull":
		r.end = unusable("image", whose+" is not on the node, and its pull policy is never to pull it")
	case "CreateContainerConfigError":
		r.pending, r.trouble = "its container cannot be made: "+shortened(w.Message), troubleConfig
	case "CreateContainerError", "RunContainerError", "CreatePodSandboxError":
		r.pending, r.trouble = "its container cannot be started: "+shortened(w.Message), troubleImage
	case "CrashLoopBackOff":
		r.pending = "its container fails again and again: " + shortened(w.Message)
	default: // ContainerCreating, PodInitializing
		return false
	}
	return true
}

// unusable is what no other attempt would get beyond.
func unusable(kind, reason string) *ending {
	return &ending{kind: kind, outcome: tidemill.OutcomeFailed, permanent: true, reason: reason, result: tidemill.Result{Exit: -1}}
}

// pulling is the part of a runtime's message that tells something. Runtimes wrap
// it: rpc error: code = NotFound desc = failed to pull and unpack image "x":
// failed to resolve reference "x": x: not found. A back-off repeats it.
func pulling(message string) string {
	if _, why, found := strings.Cut(message, ": ErrImagePull: "); found {
		message = why
	}
	if _, why, found := strings.Cut(message, " desc = "); found {
		message = why
	}
	for _, wrapped := range []string{"failed to pull and unpack image ", "failed to resolve reference "} {
		if rest, found := strings.CutPrefix(message, wrapped); found {
			if _, why, found := strings.Cut(rest, "\": "); found {
				message = why
			}
		}
	}
	if message == "" {
		return "the runtime does not say why"
	}
	return shortened(message)
}

// hopeless reports whether a registry has said that there is no such image, or
// that it is not for us. Anything else may pass.
func hopeless(message string) bool {
	m := strings.ToLower(message)
	for _, words := range []string{"not found", "manifest unknown", "name unknown", "repository does not exist", "unauthorized", "authentication required",
		"access denied", "insufficient_scope", "denied:", "403 forbidden", "no basic auth credentials", "no match for platform"} {
		if strings.Contains(m, words) {
			return true
		}
	}
	return false
}
