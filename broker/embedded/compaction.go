package embedded

import (
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const cleanupPolicy = "cleanup.policy"

// refuseCompaction answers every request that would turn compaction on with
// POLICY_VIOLATION. A request is refused whole: a control answers for the
// cluster or leaves the request to it, it cannot share the work.
func refuseCompaction(c *kfake.Cluster) {
	keep := func(k kmsg.Key, refuse func(kmsg.Request) kmsg.Response) {
		c.ControlKey(int16(k), func(req kmsg.Request) (kmsg.Response, error, bool) {
			resp := refuse(req)
			if resp == nil {
				return nil, nil, false
			}
			c.KeepControl()
			return resp, nil, true
		})
	}
	keep(kmsg.CreateTopics, refuseCreate)
	keep(kmsg.AlterConfigs, refuseAlter)
	keep(kmsg.IncrementalAlterConfigs, refuseIncremental)
}

func refuseCreate(r kmsg.Request) kmsg.Response {
	req, ok := r.(*kmsg.CreateTopicsRequest)
	if !ok {
		return nil
	}
	var offender string
	for _, t := range req.Topics {
		for _, c := range t.Configs {
			if compacts(c.Name, c.Value) {
				offender = t.Topic
			}
		}
	}
	if offender == "" {
		return nil
	}
	resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
	for _, t := range req.Topics {
		a := kmsg.NewCreateTopicsResponseTopic()
		a.Topic, a.ErrorCode, a.ErrorMessage = t.Topic, kerr.PolicyViolation.Code, whyNot(offender)
		resp.Topics = append(resp.Topics, a)
	}
	return resp
}

func refuseAlter(r kmsg.Request) kmsg.Response {
	req, ok := r.(*kmsg.AlterConfigsRequest)
	if !ok {
		return nil
	}
	var offender string
	for _, t := range req.Resources {
		for _, c := range t.Configs {
			if compacts(c.Name, c.Value) {
				offender = t.ResourceName
			}
		}
	}
	if offender == "" {
		return nil
	}
	resp := req.ResponseKind().(*kmsg.AlterConfigsResponse)
	for _, t := range req.Resources {
		a := kmsg.NewAlterConfigsResponseResource()
		a.ResourceType, a.ResourceName = t.ResourceType, t.ResourceName
		a.ErrorCode, a.ErrorMessage = kerr.PolicyViolation.Code, whyNot(offender)
		resp.Resources = append(resp.Resources, a)
	}
	return resp
}

func refuseIncremental(r kmsg.Request) kmsg.Response {
	req, ok := r.(*kmsg.IncrementalAlterConfigsRequest)
	if !ok {
		return nil
	}
	var offender string
	for _, t := range req.Resources {
		for _, c := range t.Configs {
			if compacts(c.Name, c.Value) && c.Op != kmsg.IncrementalAlterConfigOpDelete &&
				c.Op != kmsg.IncrementalAlterConfigOpSubtract {
				offender = t.ResourceName
			}
		}
	}
	if offender == "" {
		return nil
	}
	resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
	for _, t := range req.Resources {
		a := kmsg.NewIncrementalAlterConfigsResponseResource()
		a.ResourceType, a.ResourceName = t.ResourceType, t.ResourceName
		a.ErrorCode, a.ErrorMessage = kerr.PolicyViolation.Code, whyNot(offender)
		resp.Resources = append(resp.Resources, a)
	}
	return resp
}

func compacts(name string, value *string) bool {
	return name == cleanupPolicy && value != nil && strings.Contains(*value, "compact")
}

func whyNot(topic string) *string {
	s := fmt.Sprintf("topic %q asks for %s=compact, which the embedded server refuses because its compaction can lose keys;"+
		" leave the setting out and use retention.ms, or run Apache Kafka", topic, cleanupPolicy)
	return &s
}
