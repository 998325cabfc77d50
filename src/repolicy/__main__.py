from repolicy.cli.main import main

main()
