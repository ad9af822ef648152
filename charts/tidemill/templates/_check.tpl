{{/* Fails with a list of all missing values that have no default. */}}
{{- define "tidemill.check" -}}
{{- $missing := list -}}
{{- if not .Values.image.repository -}}{{- $missing = append $missing "image.repository is missing: push the image that `make image` builds to a registry of yours, and name it, such as registry.example/tidemill" -}}{{- end -}}
{{- if not .Values.kafka.address -}}{{- $missing = append $missing "kafka.address is missing: say where Kafka is, such as kafka-0.kafka:9092,kafka-1.kafka:9092" -}}{{- end -}}
{{- if not .Values.redis.address -}}{{- $missing = append $missing "redis.address is missing: say where Redis is, such as redis:6379" -}}{{- end -}}
{{- if not .Values.store.url -}}{{- $missing = append $missing "store.url is missing: say where the object store is, such as s3://models?region=eu-central-1" -}}{{- end -}}
{{- if and (not .Values.access.generate) (not .Values.access.secret) (not .Values.access.tokens) (not .Values.access.oidc) -}}{{- $missing = append $missing "nobody could do anything: give access.secret, access.tokens or access.oidc, or leave access.generate true" -}}{{- end -}}
{{- $missing = concat $missing (include "tidemill.namedByRecipes" . | splitList "\n" | compact) -}}
{{- if $missing -}}{{- fail (printf "\n  %s" (join "\n  " $missing)) -}}{{- end -}}
{{- end -}}
