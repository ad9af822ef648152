package realservers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// KafkaVersion is the Apache Kafka that tests run.
const KafkaVersion = "4.3.1"

// pom asks for Kafka's server and the log4j that it expects at run time.
const pom = `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>dev.tidemill</groupId><artifactId>kafka-server</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>` + KafkaVersion + `</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.1</version></dependency>
  </dependencies>
</project>
`

// kafkaJars returns the folder with Kafka's jars and fills it the first time.
func kafkaJars(ctx context.Context) (string, error) {
	return cached("kafka-"+KafkaVersion, func(dir string) error { return download(ctx, dir) })
}

func download(ctx context.Context, dir string) error {
	file := filepath.Join(dir, "pom.xml")
	if err := os.WriteFile(file, []byte(pom), 0o600); err != nil {
		return fmt.Errorf("write the pom of Kafka's jars: %w", err)
	}
	defer os.Remove(file)
	cmd := exec.CommandContext(ctx, "mvn", "-B", "-q", "dependency:copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory="+dir)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("download Apache Kafka %s with mvn: %w; is it installed (.ci/real-servers-install), is Maven Central in reach? %s",
			KafkaVersion, err, out)
	}
	return nil
}
