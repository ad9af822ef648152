package kube

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"tidemill.dev"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC) // read only

// podOf reads a pod from YAML as kubectl get -o yaml shows it.
func podOf(t *testing.T, text string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(text), p); err != nil {
		t.Fatalf("%s:\n%v", text, err)
	}
	return p
}

const limited = "spec: {nodeName: gpu-1, containers: [{name: run, image: r.example/t:3, resources: {limits: {memory: 512Mi}}}]}\n"

// Statuses of pods of real clusters, and the messages that users see.
func TestWhatPodsSay(t *testing.T) {
	t.Parallel()
	waiting := func(container, reason, message string) string {
		kind := "containerStatuses"
		if container == containerInstall {
			kind = "initContainerStatuses"
		}
		quoted, _ := json.Marshal(message)
		return limited + "status: {phase: Pending, conditions: [{type: PodScheduled, status: 'True', lastTransitionTime: '2026-11-22T11:59:50Z'}], " +
			kind + ": [{name: " + container + ", image: 'r.example/t:3', imageID: '', state: {waiting: {reason: " + reason + ", message: " + string(quoted) + "}}}]}"
	}
	failed := func(fields string) string { return limited + "status: {phase: Failed, " + fields + "}" }
	ended := func(reason string, exit string) string {
		return failed("containerStatuses: [{name: run, image: 'r.example/t:3', imageID: 'r.example/t@sha256:abc', state: {terminated: {exitCode: " + exit + ", reason: " + reason + ", message: 'exec format error'}}}]")
	}
	disrupted := func(reason, message string) string {
		return failed("conditions: [{type: DisruptionTarget, status: 'True', reason: " + reason + ", message: '" + message + "'}], containerStatuses: [{name: run, image: x, imageID: '', state: {terminated: {exitCode: 137, reason: Error}}}]")
	}
	type told struct {
		pending string
		trouble trouble
		kind    string // kind of the end; empty for no end
		outcome tidemill.Outcome
		forGood bool
		reason  string // part of the end's reason
	}
	for name, c := range map[string]struct {
		pod  string
		want told
	}{
		"just made": {limited + "status: {phase: Pending}", told{}},
		"no GPU": {"status: {phase: Pending, conditions: [{type: PodScheduled, status: 'False', reason: Unschedulable, message: '0/5 nodes are available: 1 node(s) had untolerated taint {gpu: }, 4 Insufficient nvidia.com/gpu. no new claims to deallocate, preemption: 0/5 nodes are available: 1 Preemption is not helpful for scheduling, 4 No preemption victims found for incoming pod.'}]}",
			told{pending: "0/5 nodes are available: 1 node(s) had untolerated taint {gpu: }, 4 Insufficient nvidia.com/gpu", trouble: troubleRoom}},
		"no such node": {"status: {phase: Pending, conditions: [{type: PodScheduled, status: 'False', reason: Unschedulable, message: \"0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.\"}]}",
			told{pending: "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector"}},
		"held back":         {"status: {phase: Pending, conditions: [{type: PodScheduled, status: 'False', reason: SchedulingGated, message: Scheduling is blocked due to non-empty scheduling gates}]}", told{pending: "scheduling gates block it: Scheduling is blocked due to non-empty scheduling gates"}},
		"a long pull":       {waiting("run", "ContainerCreating", ""), told{pending: "its container is being made on gpu-1: its image is pulled, or its volumes are attached"}},
		"no such image":     {waiting("run", "ErrImagePull", `rpc error: code = NotFound desc = failed to pull and unpack image "r.example/t:3": failed to resolve reference "r.example/t:3": r.example/t:3: not found`), told{"image r.example/t:3 cannot be pulled: r.example/t:3: not found", troubleImage, "image", "failed", true, "r.example/t:3: not found"}},
		"and again":         {waiting("run", "ImagePullBackOff", `Back-off pulling image "r.example/t:3": ErrImagePull: rpc error: code = NotFound desc = failed to pull and unpack image "r.example/t:3": failed to resolve reference "r.example/t:3": r.example/t:3: not found`), told{"image r.example/t:3 cannot be pulled: r.example/t:3: not found", troubleImage, "image", "failed", true, "not found"}},
		"not for us":        {waiting("run", "ErrImagePull", `failed to pull and unpack image "r.example/t:3": failed to resolve reference "r.example/t:3": failed to authorize: failed to fetch anonymous token: unexpected status from GET request to https://r.example/token: 401 Unauthorized`), told{"image r.example/t:3 cannot be pulled: failed to authorize: failed to fetch anonymous token: unexpected status from GET request to https://r.example/token: 401 Unauthorized", troubleImage, "image", "failed", true, "401 Unauthorized"}},
		"no registry":       {waiting("run", "ErrImagePull", `failed to do request: Head "https://r.example/v2/t/manifests/3": dial tcp 10.0.0.1:443: i/o timeout`), told{pending: `image r.example/t:3 cannot be pulled: failed to do request: Head "https://r.example/v2/t/manifests/3": dial tcp 10.0.0.1:443: i/o timeout`, trouble: troubleImage}},
		"a lost snapshot":   {waiting("run", "ErrImagePull", `rpc error: code = NotFound desc = failed to pull and unpack image "r.example/t:3": failed to prepare extraction snapshot "extract-1 sha256:ab": parent snapshot sha256:cd does not exist: not found`), told{pending: `image r.example/t:3 cannot be pulled: failed to prepare extraction snapshot "extract-1 sha256:ab": parent snapshot sha256:cd does not exist: not found`, trouble: troubleImage}},
		"a lost layer":      {waiting("run", "ErrImagePull", `rpc error: code = NotFound desc = failed to pull and unpack image "r.example/t:3": failed to copy: httpReadSeeker: failed open: content at https://r.example/v2/t/manifests/sha256:ab not found: not found`), told{pending: `image r.example/t:3 cannot be pulled: failed to copy: httpReadSeeker: failed open: content at https://r.example/v2/t/manifests/sha256:ab not found: not found`, trouble: troubleImage}},
		"no such tag":       {waiting("run", "ErrImagePull", `Error response from daemon: manifest for r.example/t:3 not found`), told{"image r.example/t:3 cannot be pulled: Error response from daemon: manifest for r.example/t:3 not found", troubleImage, "image", "failed", true, "not found"}},
		"a bare back-off":   {waiting("run", "ImagePullBackOff", `Back-off pulling image "r.example/t:3"`), told{pending: `image r.example/t:3 cannot be pulled: Back-off pulling image "r.example/t:3"`, trouble: troubleImage}},
		"no name":           {waiting("run", "InvalidImageName", `Failed to apply default image tag "R:::": couldn't parse image name`), told{kind: "image", outcome: "failed", forGood: true, reason: "is not the name of an image"}},
		"our own image":     {waiting("install", "ErrImagePull", "no route to host"), told{pending: "our own image r.example/t:3 cannot be pulled: no route to host", trouble: troubleImage}},
		"no Secret":         {waiting("run", "CreateContainerConfigError", `secret "hf" not found`), told{pending: `its container cannot be made: secret "hf" not found`, trouble: troubleConfig}},
		"no token":          {waiting("run", "CreateContainerConfigError", `secret "tidemill-attempt-a-1" not found`), told{pending: `its container cannot be made: secret "tidemill-attempt-a-1" not found`, trouble: troubleToken}},
		"out of memory":     {ended("OOMKilled", "137"), told{kind: "out-of-memory", outcome: "failed", reason: "the command was killed for memory: its limit is 512Mi (run.memory); give it more, or have it use less"}},
		"without a limit":   {strings.Replace(ended("OOMKilled", "137"), "limits: {memory: 512Mi}", "limits: {}", 1), told{kind: "out-of-memory", outcome: "failed", reason: "node gpu-1 had none left; set run.memory"}},
		"not to be started": {ended("StartError", "128"), told{kind: "start", outcome: "failed", reason: "exec format error"}},
		"without a word":    {ended("Error", "2"), told{kind: "silent", outcome: "lost", reason: "left without reporting its end (exit status 2)"}},
		"killed":            {ended("Error", "137"), told{kind: "silent", outcome: "lost", reason: "killed (SIGKILL)"}},
		"well, and silent":  {limited + "status: {phase: Succeeded}", told{kind: "silent", outcome: "lost", reason: "exit status 0"}},
		"evicted":           {failed("reason: Evicted, message: 'The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 900Mi. '"), told{kind: "evicted", outcome: "lost", reason: "evicted from node gpu-1: The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 900Mi."}},
		"too much on disk":  {failed("reason: Evicted, message: 'Pod ephemeral local storage usage exceeds the total limit of containers 50Gi. '"), told{kind: "disk", outcome: "failed", reason: "used more disk than its limit (run.disk) on node gpu-1: raise it"}},
		"in its container":  {strings.Replace(failed("reason: Evicted, message: 'Container run exceeded its local ephemeral storage limit \"50Gi\". '"), "memory: 512Mi", "ephemeral-storage: 50Gi", 1), told{kind: "disk", outcome: "failed", reason: "more disk than its limit of 50Gi (run.disk)"}},
		"in its folder":     {failed("reason: Evicted, message: 'Usage of EmptyDir volume \"tidemill-work\" exceeds the limit \"50Gi\". '"), told{kind: "disk", outcome: "failed", reason: "volume \"tidemill-work\""}},
		"by the kubelet":    {disrupted("TerminationByKubelet", "Pod was terminated in response to imminent node shutdown."), told{kind: "evicted", outcome: "lost", reason: "imminent node shutdown"}},
		"preempted":         {disrupted("PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod"), told{kind: "preempted", outcome: "lost", reason: "preempted on node gpu-1: default-scheduler: preempting to accommodate a higher priority pod"}},
		"drained":           {disrupted("EvictionByEvictionAPI", "Eviction API: evicting"), told{kind: "evicted", outcome: "lost", reason: "as when a node is drained"}},
		"tainted":           {disrupted("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"), told{kind: "node-lost", outcome: "lost", reason: "Taint manager"}},
		"without its node":  {disrupted("DeletionByPodGC", "PodGC: node no longer exists"), told{kind: "node-lost", outcome: "lost", reason: "its node gpu-1 no longer exists"}},
		"node lost":         {failed("reason: NodeLost, message: x"), told{kind: "node-lost", outcome: "lost", reason: "gpu-1 does not answer"}},
		"unknown":           {limited + "status: {phase: Unknown}", told{kind: "node-lost", outcome: "lost", reason: "gpu-1 does not answer"}},
		"late":              {failed("reason: DeadlineExceeded, message: Pod was active on the node longer than the specified deadline"), told{kind: "deadline", outcome: "failed", reason: "it did not end within its deadline"}},
		"no room":           {failed("reason: OutOfnvidia.com/gpu, message: 'Node did not have enough resource: nvidia.com/gpu'"), told{kind: "refused", outcome: "lost", reason: "had no room for it after all"}},
		"the agent":         {failed("initContainerStatuses: [{name: install, image: ours, imageID: '', state: {terminated: {exitCode: 1, reason: Error, message: no space left on device}}}]"), told{kind: "install", outcome: "lost", reason: "could not be put into its pod: container install: no space left on device"}},
		"for no reason":     {failed("message: ''"), told{kind: "failed", outcome: "lost", reason: "the cluster does not say why"}},
	} {
		r := read(podOf(t, c.pod), noon)
		got := told{pending: r.pending, trouble: r.trouble}
		if r.end != nil {
			got.kind, got.outcome, got.forGood, got.reason = r.end.kind, r.end.outcome, r.end.permanent, r.end.reason
		}
		if !strings.Contains(got.reason, c.want.reason) || (got.reason == "") != (c.want.reason == "") {
			t.Errorf("%s: the reason is %q, want %q", name, got.reason, c.want.reason)
		}
		if c.want.reason = got.reason; got != c.want {
			t.Errorf("%s:\n%+v, want\n%+v", name, got, c.want)
		}
	}
}

// If a node does not answer, the cluster sets its pods to not ready and leaves their containers
// ready. A kubelet gives a reason: another container of the pod is not ready.
func TestANodeThatIsNotHeardOf(t *testing.T) {
	t.Parallel()
	running := limited + "status: {phase: Running, conditions: [{type: Ready, status: 'READY', reason: 'REASON'}], containerStatuses: [{name: run, ready: WELL, image: x, imageID: 'docker-pullable://r.example/t@sha256:abc', state: {running: {}}}]}"
	for _, c := range []struct {
		ready, reason, well string
		doubtful            bool
	}{{"True", "", "true", false}, {"False", "", "true", true}, {"False", "", "false", false}, {"False", "ContainersNotReady", "true", false}} {
		r := read(podOf(t, strings.NewReplacer("READY", c.ready, "REASON", c.reason, "WELL", c.well).Replace(running)), noon)
		if r.doubtful != c.doubtful || (r.end != nil) != c.doubtful || r.where.Image != "sha256:abc" || r.where.Node != "gpu-1" {
			t.Errorf("%+v: %+v", c, r)
		}
	}
}

func TestDigests(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{"": "", "sha256:1": "sha256:1", "r.example/t@sha256:2": "sha256:2", "docker-pullable://r/t@sha256:3": "sha256:3",
		"docker://sha256:4": "sha256:4", "odd": "odd"} {
		if got := digestOf(id); got != want {
			t.Errorf("%q is %q, want %q", id, got, want)
		}
	}
}
