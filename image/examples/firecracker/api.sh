# Sourced: `api METHOD /path 'JSON'` to the Firecracker whose API socket is $API.
api() {
    curl --silent --show-error --fail-with-body --unix-socket "$API" -X "$1" "http://localhost$2" \
        -H 'Content-Type: application/json' -d "$3"
}
