{{- define "ddmq.app" -}}
{{- .Values.nameOverride | default "ddmq" | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- /* The name of everything: the release's name, and ddmq unless that contains it. At most 50 characters, so that
the names of pods and services stay below 63. */ -}}
{{- define "ddmq.name" -}}
{{- $app := include "ddmq.app" . -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride }}
{{- else if contains $app .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name $app | trunc 50 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{- define "ddmq.selector" -}}
app.kubernetes.io/name: {{ include "ddmq.app" . }}
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

{{- /* Host names that the admin port answers to: the services', the pod's own, and those that the user adds. */ -}}
{{- define "ddmq.adminNames" -}}
{{- $name := include "ddmq.name" . -}}
{{- $ddmq := .Values.config.ddmq | default dict -}}
{{- $names := list -}}
{{- range $host := list $name (printf "%s-pods" $name) (printf "$(POD_NAME).%s-pods" $name) -}}
{{- range $suffix := list "" (printf ".%s" $.Release.Namespace) (printf ".%s.svc" $.Release.Namespace) (printf ".%s.svc.cluster.local" $.Release.Namespace) -}}
{{- $names = append $names (printf "%s%s" $host $suffix) -}}
{{- end -}}
{{- end -}}
{{- concat $names .Values.adminNames ($ddmq.admin_names | default list) | toJson -}}
{{- end }}

{{- /* The end of a probe: HTTPS if the configuration requires TLS of the admin port. */ -}}
{{- define "ddmq.adminScheme" -}}
{{- $security := .Values.config.security | default dict -}}
{{- if eq (($security.tls | default dict).admin | default "off") "required" -}}, scheme: HTTPS{{- end -}}
{{- end }}
