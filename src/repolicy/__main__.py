from repolicy.cli import main

main()
