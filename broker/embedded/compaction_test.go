package embedded

import (
	"errors"
	"testing"

	"github.com/segmentio/kafka-go"
)

func TestCompactionIsRefused(t *testing.T) {
	s := start(t, Options{})
	c := kafkaClient(t, s.Kafka())
	for range 2 { // the server must refuse every time, not only once
		for _, policy := range []string{"compact", "compact,delete"} {
			err := createTopic(t, c, "facts", kafka.ConfigEntry{ConfigName: cleanupPolicy, ConfigValue: policy})
			if !errors.Is(err, kafka.PolicyViolation) {
				t.Errorf("create with %s: %v", policy, err)
			}
		}
	}
	must(t, createTopic(t, c, "facts", kafka.ConfigEntry{ConfigName: cleanupPolicy, ConfigValue: "delete"}))
	if err := alter(t, c, cleanupPolicy, "compact"); !errors.Is(err, kafka.PolicyViolation) {
		t.Errorf("alter: %v", err)
	}
	if err := alterIncrementally(t, c, kafka.ConfigOperationSet, "compact"); !errors.Is(err, kafka.PolicyViolation) {
		t.Errorf("incremental set: %v", err)
	}
	if err := alterIncrementally(t, c, kafka.ConfigOperationAppend, "compact"); !errors.Is(err, kafka.PolicyViolation) {
		t.Errorf("incremental append: %v", err)
	}
	must(t, alter(t, c, "retention.ms", "1000"))
	must(t, alterIncrementally(t, c, kafka.ConfigOperationSet, "delete"))
}

func alter(t *testing.T, c *kafka.Client, name, value string) error {
	t.Helper()
	r, err := c.AlterConfigs(t.Context(), &kafka.AlterConfigsRequest{Resources: []kafka.AlterConfigRequestResource{{
		ResourceType: kafka.ResourceTypeTopic, ResourceName: "facts",
		Configs: []kafka.AlterConfigRequestConfig{{Name: name, Value: value}}}}})
	must(t, err)
	for _, err := range r.Errors {
		return err
	}
	t.Fatal("no answer")
	return nil
}

func alterIncrementally(t *testing.T, c *kafka.Client, op kafka.ConfigOperation, value string) error {
	t.Helper()
	r, err := c.IncrementalAlterConfigs(t.Context(), &kafka.IncrementalAlterConfigsRequest{
		Resources: []kafka.IncrementalAlterConfigsRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: "facts",
			Configs: []kafka.IncrementalAlterConfigsRequestConfig{{
				Name: cleanupPolicy, Value: value, ConfigOperation: op}}}}})
	must(t, err)
	if len(r.Resources) != 1 {
		t.Fatalf("%d answers", len(r.Resources))
	}
	return r.Resources[0].Error
}
