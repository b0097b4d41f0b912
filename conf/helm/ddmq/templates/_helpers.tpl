{{- define "ddmq.name" -}}
{{- if contains "ddmq" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-ddmq" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "ddmq.selector" -}}
app.kubernetes.io/name: ddmq
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ddmq.labels" -}}
{{ include "ddmq.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "ddmq.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "ddmq.onKafka" -}}{{ if eq .Values.backend "kafka" }}true{{ end }}{{- end }}

{{- /* Host names that the admin port answers to: the services', and those that the user adds. */ -}}
{{- define "ddmq.adminNames" -}}
{{- $name := include "ddmq.name" . -}}
{{- $names := list -}}
{{- range $service := list $name (printf "%s-pods" $name) -}}
{{- range $suffix := list "" (printf ".%s" $.Release.Namespace) (printf ".%s.svc" $.Release.Namespace) (printf ".%s.svc.cluster.local" $.Release.Namespace) -}}
{{- $names = append $names (printf "%s%s" $service $suffix) -}}
{{- end -}}
{{- end -}}
{{- concat $names .Values.adminNames | toJson -}}
{{- end }}
