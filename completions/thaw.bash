# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Bash completion for thaw: commands, options, template names.

_thaw_templates() {
	local folder="${THAW_STATE:-/var/lib/thaw}/templates" path
	for path in "$folder"/*/; do
		[[ -d $path ]] || continue
		path=${path%/}
		printf '%s\n' "${path##*/}"
	done
}

_thaw_fill() {
	mapfile -t COMPREPLY < <(compgen -W "$1" -- "${COMP_WORDS[COMP_CWORD]}")
}

_thaw_run() {
	case ${COMP_WORDS[COMP_CWORD - 1]} in
	--json | --console)
		mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
		return
		;;
	--strategy)
		_thaw_fill "ws mmap copy"
		return
		;;
	-e | --env)
		mapfile -t COMPREPLY < <(compgen -e -- "${COMP_WORDS[COMP_CWORD]}")
		return
		;;
	-w | --workdir | -u | --user | --timeout | --hostname)
		return
		;;
	esac
	if [[ ${COMP_WORDS[COMP_CWORD]} == -* ]]; then
		_thaw_fill "--env --workdir --user --interactive --strategy --json --timeout --hostname --console --help --"
	else
		_thaw_fill "$(_thaw_templates)"
	fi
}

_thaw_template() {
	local verb=${COMP_WORDS[2]}
	if ((COMP_CWORD == 2)); then
		_thaw_fill "build ls inspect verify rm help"
		return
	fi
	case $verb:${COMP_WORDS[COMP_CWORD - 1]} in
	build:--recipe)
		mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
		return
		;;
	build:--from)
		_thaw_fill "$(_thaw_templates)"
		return
		;;
	build:--strategy)
		_thaw_fill "ws mmap copy"
		return
		;;
	build:--vcpus)
		_thaw_fill "1 2 3 4 5 6 7 8"
		return
		;;
	esac
	case $verb:${COMP_WORDS[COMP_CWORD]} in
	build:-*) _thaw_fill "--recipe --vcpus --memory --from --strategy --warm --replace --serial --timeout --help" ;;
	ls:* | inspect:-*) _thaw_fill "--json --help" ;;
	verify:-* | rm:-*) _thaw_fill "--help" ;;
	*) _thaw_fill "$(_thaw_templates)" ;;
	esac
}

_thaw() {
	local i
	COMPREPLY=()
	# What stands behind "--" is the sandbox's: nothing here knows its files.
	for ((i = 1; i < COMP_CWORD; i++)); do
		[[ ${COMP_WORDS[i]} == -- ]] && return
	done
	if ((COMP_CWORD == 1)); then
		_thaw_fill "run template doctor version help"
		return
	fi
	case ${COMP_WORDS[1]} in
	run) _thaw_run ;;
	template) _thaw_template ;;
	doctor) _thaw_fill "--json --help" ;;
	esac
}

complete -F _thaw thaw
