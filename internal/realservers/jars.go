package realservers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
// It appears by a rename, so it is complete or absent, whoever else asks.
func kafkaJars(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache folder for Kafka's jars: %w", err)
	}
	home := filepath.Join(cache, "tidemill")
	dir := filepath.Join(home, "kafka-"+KafkaVersion)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(home, 0o755); err != nil {
		return "", fmt.Errorf("make the cache folder: %w", err)
	}
	tmp, err := os.MkdirTemp(home, "download-")
	if err != nil {
		return "", fmt.Errorf("make a folder for Kafka's jars: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := download(ctx, tmp); err != nil {
		return "", err
	}
	err = os.Rename(filepath.Join(tmp, "libs"), dir)
	if err != nil && !errors.Is(err, fs.ErrExist) { // another was first
		return "", fmt.Errorf("keep Kafka's jars: %w", err)
	}
	return dir, nil
}

func download(ctx context.Context, dir string) error {
	if err := os.WriteFile(filepath.Join(dir, "pom.xml"), []byte(pom), 0o600); err != nil {
		return fmt.Errorf("write the pom of Kafka's jars: %w", err)
	}
	cmd := exec.CommandContext(ctx, "mvn", "-B", "-q", "dependency:copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory="+filepath.Join(dir, "libs"))
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("download Apache Kafka %s with mvn: %w; is it installed (.ci/real-servers-install), is Maven Central in reach? %s",
			KafkaVersion, err, out)
	}
	return nil
}
